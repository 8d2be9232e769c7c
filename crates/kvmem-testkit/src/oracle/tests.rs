//! Tests of the oracle against an even simpler model: one flag per byte, every query by trying.

use proptest::prelude::*;

use super::{Oracle, ViolationError};

/// A space as an array of bytes, each in use or not.
struct Bytes {
    used: Vec<bool>,
    boundary: usize,
}

impl Bytes {
    fn of(oracle: &Oracle) -> Self {
        let mut used = vec![false; oracle.capacity() as usize];
        for (start, len, in_use) in oracle.map() {
            used[start as usize..][..len as usize].fill(in_use);
        }
        Bytes { used, boundary: oracle.boundary().unwrap_or(u64::MAX) as usize }
    }

    fn can_grant(&self, start: usize, size: usize) -> bool {
        let end = start + size;
        end <= self.used.len()
            && start / self.boundary == (end - 1) / self.boundary
            && !self.used[start..end].contains(&true)
    }

    fn fits(&self, size: usize, align: usize) -> bool {
        (0..self.used.len()).step_by(align).any(|start| self.can_grant(start, size))
    }

    fn largest_free(&self) -> usize {
        (1..=self.used.len()).rev().find(|&size| self.fits(size, 1)).unwrap_or(0)
    }

    /// Takes the first fitting place repeatedly, which never wastes one.
    fn fits_times(&self, size: usize) -> u128 {
        let (mut at, mut times) = (0, 0);
        while at < self.used.len() {
            let fits = self.can_grant(at, size);
            times += u128::from(fits);
            at += if fits { size } else { 1 };
        }
        times
    }

    /// Takes the longest places first.
    fn fits_scattered(&mut self, total: usize, max_ranges: usize) -> bool {
        let mut rest = total;
        for _ in 0..max_ranges {
            let size = self.largest_free().min(rest);
            if size == 0 {
                break;
            }
            let start = (0..self.used.len())
                .find(|&start| self.can_grant(start, size))
                .expect("it is the largest");
            self.used[start..start + size].fill(true);
            rest -= size;
        }
        rest == 0
    }

    fn free_behind(&self, end: usize) -> usize {
        let free = self.used[end..].iter().take_while(|used| !**used).count();
        if end.is_multiple_of(self.boundary) {
            0
        } else {
            free.min(self.boundary - end % self.boundary)
        }
    }
}

/// Creates a space and grants each of `grants`, a start and a size, that can be granted.
fn space(capacity: u64, boundary: Option<u64>, grants: &[(u64, u64)]) -> Oracle {
    let mut oracle = Oracle::new(capacity, boundary);
    for &(start, size) in grants {
        let possible = Bytes::of(&oracle).can_grant(start as usize, size as usize);
        assert_eq!(
            oracle.grant(start, size).is_ok(),
            possible,
            "{size} bytes at {start} of {oracle:?}"
        );
    }
    oracle
}

fn spaces() -> impl Strategy<Value = Oracle> {
    let boundary = prop_oneof![Just(None), (1..20u64).prop_map(Some)];
    let grants = prop::collection::vec((0..60u64, 1..12u64), 0..12);
    (1..60u64, boundary, grants)
        .prop_map(|(capacity, boundary, grants)| space(capacity, boundary, &grants))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_trying(oracle in spaces()) {
        let bytes = Bytes::of(&oracle);
        let free = bytes.used.iter().filter(|used| !**used).count() as u64;
        prop_assert_eq!(oracle.free_bytes(), free);
        prop_assert_eq!(oracle.allocated(), oracle.capacity() - free);
        prop_assert_eq!(oracle.largest_free(), bytes.largest_free() as u64);
        for size in 1..=oracle.capacity() {
            for align in [1, 2, 4, 8, 64] {
                let tried = bytes.fits(size as usize, align as usize);
                prop_assert_eq!(oracle.fits(size, align), tried, "{} at {}", size, align);
            }
            let tried = bytes.fits_times(size as usize);
            prop_assert_eq!(oracle.fits_times(size), tried, "{} bytes each", size);
        }
        for range in oracle.used_from(0) {
            let tried = bytes.free_behind(range.end as usize) as u64;
            prop_assert_eq!(oracle.free_behind(range.start), tried);
        }
    }

    #[test]
    fn knows_what_fits_scattered(oracle in spaces(), total in 1..60u64, max_ranges in 0..6usize) {
        let tried = Bytes::of(&oracle).fits_scattered(total as usize, max_ranges);
        prop_assert_eq!(oracle.fits_scattered(total, max_ranges), tried);
    }

    #[test]
    fn freeing_all_leaves_one_range(oracle in spaces(), by in any::<prop::sample::Index>()) {
        let mut oracle = oracle;
        let mut starts: Vec<u64> = oracle.used_from(0).map(|range| range.start).collect();
        while !starts.is_empty() {
            let start = starts.swap_remove(by.index(starts.len()));
            oracle.free(start).unwrap();
        }
        prop_assert_eq!(oracle.map(), vec![(0, oracle.capacity(), false)]);
        prop_assert_eq!((oracle.free_ranges(), oracle.live(), oracle.allocated()), (1, 0, 0));
    }
}

#[test]
fn rejects_what_no_allocator_may_do() {
    let mut oracle = space(100, Some(40), &[(10, 20)]);
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
fn changes_in_place() {
    let mut oracle = space(100, None, &[(10, 20)]);
    oracle.resize(10, 50).unwrap();
    oracle.free_part(10, 20..30).unwrap();
    assert_eq!(
        oracle.map(),
        [(0, 10, false), (10, 10, true), (20, 10, false), (30, 30, true), (60, 40, false)]
    );
    oracle.set_capacity(60).unwrap();
    assert_eq!((oracle.free_bytes(), oracle.end_of_last()), (20, 60));
    oracle.set_capacity(1 << 63).unwrap();
    assert_eq!(oracle.largest_free(), (1 << 63) - 60);
    assert_eq!(oracle.free(30), Ok(30));
    assert_eq!(oracle.map(), [(0, 10, false), (10, 10, true), (20, (1 << 63) - 20, false)]);
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
