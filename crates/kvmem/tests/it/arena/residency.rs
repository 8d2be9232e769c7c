//! Residency, discarding and advice.

use super::{MIB, backing, base, ordinary, page};
use kvmem::arena::{Advice, ArenaError, Call, Populate};

#[test]
fn touched_pages_are_resident_and_no_others() {
    let page = page();
    let mut region = base(64 * page).map().expect("little memory");
    assert!(!region.is_resident(..).expect("measured"));
    let bytes = region.as_mut_bytes().expect("private memory");
    for n in [0, 3, 4, 63] {
        bytes[n * page] = 1;
    }
    let found = region.residency(..).expect("measured");
    assert_eq!((found.resident_bytes, found.error_bytes), (4 * page as u64, 0), "{found:?}");
    assert!(region.is_resident(3 * page..5 * page).expect("measured"));
    assert!(!region.is_resident(2 * page..5 * page).expect("measured"));
    // A byte is resident if its page is.
    assert!(region.is_resident(63 * page + 5..63 * page + 6).expect("measured"));
}

#[test]
fn discarded_pages_are_not_resident_and_read_as_zero() {
    let page = page();
    for shared in [false, true] {
        let region = base(16 * page)
            .backing(backing(shared))
            .populate(Populate::Auto)
            .map()
            .expect("little memory");
        // SAFETY: no other code has this memory.
        unsafe { region.slice(..).expect("all of it").as_mut_bytes() }.fill(7);
        region.discard(2 * page..5 * page).expect("whole pages");
        assert_eq!(region.residency(..).expect("measured").resident_bytes, 13 * page as u64);
        // SAFETY: no code writes any more.
        let bytes = unsafe { region.bytes() };
        let zeros = bytes.iter().filter(|byte| **byte == 0).count();
        assert_eq!(zeros, 3 * page);
        assert!(bytes[2 * page..5 * page].iter().all(|byte| *byte == 0));
        // Neither an empty range nor a discarded one is an error.
        region.discard(page..page).expect("nothing");
        region.discard(..).expect("whole pages");
        assert_eq!(region.residency(..).expect("measured").resident_bytes, 0);
    }
}

#[test]
fn invalid_ranges_fail() {
    let page = page();
    let region = base(4 * page).map().expect("little memory");
    for range in [0..5 * page, 5 * page..5 * page, usize::MAX - 1..usize::MAX] {
        let error = region.discard(range.clone()).expect_err("out of bounds");
        let ArenaError::OutOfBounds { start, end, len } = error else { panic!("{error}") };
        assert_eq!((start..end, len), (range, 4 * page));
    }
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 2 * page..page;
    assert!(matches!(region.residency(reversed), Err(ArenaError::OutOfBounds { .. })));
    assert!(matches!(region.residency(..=usize::MAX), Err(ArenaError::OutOfBounds { .. })));
    for range in [1..page, 0..page - 1, 0..1] {
        let error = region.discard(range.clone()).expect_err("not whole pages");
        assert_eq!(error, ArenaError::Misaligned { start: range.start, end: range.end, page });
        assert!(matches!(region.advise(range, Advice::Random), Err(ArenaError::Misaligned { .. })));
    }
}

#[test]
fn advice_changes_no_byte() {
    let mut region = ordinary(4 * MIB).map().expect("little memory");
    region.as_mut_bytes().expect("private memory").fill(9);
    for advice in [
        Advice::Normal,
        Advice::Random,
        Advice::Sequential,
        Advice::WillNeed,
        Advice::Cold,
        Advice::BasePages,
        Advice::HugePages,
        Advice::Collapse,
    ] {
        match region.advise(.., advice) {
            Ok(()) => {}
            // An older kernel, or one with too few hugepages.
            Err(ArenaError::CallFailed { call: Call::Advise, errno, .. }) => {
                println!("{advice:?}: {errno}")
            }
            Err(error) => panic!("{advice:?}: {error}"),
        }
    }
    assert!(region.as_mut_bytes().expect("private memory").iter().all(|byte| *byte == 9));
}
