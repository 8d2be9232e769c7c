//! Violations that the oracle finds, and numbers beyond those of any test of an allocator. Each
//! test of the driver compares the oracle's answers with the allocator's.

use super::{Oracle, ViolationError};

#[test]
fn rejects_what_no_allocator_may_do() {
    let mut oracle = Oracle::new(100, Some(40));
    oracle.grant(10, 20).unwrap();
    let before = oracle.map();
    assert_eq!(oracle.grant(50, 0), Err(ViolationError::Empty(50)));
    assert_eq!(
        oracle.grant(90, 11),
        Err(ViolationError::OutOfSpace { range: 90..101, capacity: 100 })
    );
    assert_eq!(oracle.grant(35, 6), Err(ViolationError::Straddles { range: 35..41, boundary: 40 }));
    for (start, size) in [(10, 20), (5, 6), (29, 1), (0, 35), (15, 5)] {
        assert_eq!(
            oracle.grant(start, size),
            Err(ViolationError::Overlap { range: start..start + size })
        );
    }
    assert_eq!(oracle.free(11), Err(ViolationError::NotUsed(11)));
    assert_eq!(
        oracle.resize(10, 31),
        Err(ViolationError::Straddles { range: 10..41, boundary: 40 })
    );
    assert_eq!(
        oracle.free_part(10, 20..31),
        Err(ViolationError::NotPart { part: 20..31, whole: 10..30 })
    );
    assert_eq!(
        oracle.free_part(10, 20..20),
        Err(ViolationError::NotPart { part: 20..20, whole: 10..30 })
    );
    assert_eq!(
        oracle.set_capacity(29),
        Err(ViolationError::CutOff { capacity: 29, end_of_last: 30 })
    );
    assert_eq!(oracle.map(), before, "a violation changes nothing");
}

#[test]
fn counts_pieces_of_any_number() {
    let oracle = Oracle::new(1 << 63, Some(3));
    assert_eq!(oracle.free_pieces(), (1u128 << 63) / 3 + 1);
    assert_eq!((oracle.fits_times(3), oracle.fits_times(2)), ((1 << 63) / 3, (1 << 63) / 3 + 1));
    assert!(oracle.fits(3, 1 << 62), "at 0");
    assert!(oracle.fits_scattered(300, 100) && !oracle.fits_scattered(301, 100));
    // 3·i is a multiple of 2^40 only where i is: below 3·2^40, 0 is the only start for three bytes.
    let mut oracle = Oracle::new(3 << 40, Some(3));
    assert!(oracle.fits(3, 1 << 40));
    oracle.grant(0, 1).unwrap();
    assert!(!oracle.fits(3, 1 << 40) && oracle.fits(2, 1 << 40));
}
