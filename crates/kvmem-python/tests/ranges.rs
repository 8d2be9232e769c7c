//! Compares the hash table of ranges with one of the standard library.

#![allow(missing_docs, reason = "tests")]

#[path = "../src/ranges.rs"]
mod ranges;

use std::collections::BTreeMap;

use kvmem::offset::{Allocation, OffsetAllocator};
use proptest::prelude::*;
use ranges::Ranges;

/// The table and its expected content: starts and lengths.
#[derive(Default)]
struct Both {
    ranges: Ranges,
    expected: BTreeMap<u64, u64>,
}

impl Both {
    fn insert(&mut self, allocation: Allocation) {
        self.expected.insert(allocation.offset(), allocation.len());
        self.ranges.insert(allocation);
    }

    /// Compares both answers for a start.
    fn remove(&mut self, at: u64) -> Option<Allocation> {
        let taken = self.ranges.remove(at);
        assert_eq!(taken.as_ref().map(Allocation::len), self.expected.remove(&at));
        assert!(self.ranges.get(at).is_none());
        taken
    }

    fn check(&self) {
        assert_eq!(self.ranges.len(), self.expected.len());
        let listed: BTreeMap<u64, u64> =
            self.ranges.iter().map(|it| (it.offset(), it.len())).collect();
        assert_eq!(listed, self.expected);
        for (&at, &size) in &self.expected {
            assert_eq!(self.ranges.get(at).map(|it| (it.offset(), it.len())), Some((at, size)));
        }
    }
}

proptest! {
    /// Few ranges in a small table, often the same ones: runs of entries that move, also around the
    /// end of the table. With distances of up to 2^56 few bits of a start differ.
    #[test]
    fn it_holds_what_was_put_in(
        distance in 0u32..57,
        steps in prop::collection::vec((any::<bool>(), 0u64..64), 1..400),
    ) {
        let space = OffsetAllocator::new(64 << distance).unwrap();
        let mut free: BTreeMap<u64, Allocation> =
            space
                .allocate_batch(1 << distance, 64)
                .unwrap()
                .into_iter()
                .map(|allocation| (allocation.offset(), allocation))
                .collect();
        let mut both = Both::default();
        for (insert, which) in steps {
            let at = which << distance;
            match free.remove(&at) {
                Some(allocation) if insert => both.insert(allocation),
                Some(allocation) => {
                    prop_assert!(both.remove(at).is_none());
                    free.insert(at, allocation);
                }
                None => free.extend(both.remove(at).map(|it| (at, it))),
            }
            both.check();
        }
    }
}

/// Realistic lengths, in units of 4 KiB, and the longest one that an allocation stores without the
/// allocator's metadata.
#[test]
fn tens_of_thousands_come_and_go() {
    for units in [1, 16, 513, (1 << 32) - 1, 1 << 32] {
        let space = OffsetAllocator::new(units << 15).unwrap();
        let mut both = Both::default();
        for allocation in space.allocate_batch(units, 1 << 15).unwrap() {
            both.insert(allocation);
        }
        both.check();
        for at in (0..1 << 15).filter(|at| at % 3 != 0) {
            drop(both.remove(at * units));
        }
        both.check();
        while let Ok(allocation) = space.allocate(units) {
            both.insert(allocation);
        }
        both.check();
        assert_eq!(both.ranges.len(), 1 << 15);
        for at in 0..1 << 15 {
            drop(both.remove(at * units));
        }
        both.check();
        assert_eq!(space.metrics().live, 0);
    }
}

#[test]
fn an_empty_one_has_nothing() {
    let mut ranges = Ranges::default();
    assert!(ranges.get(0).is_none() && ranges.remove(0).is_none());
    assert_eq!((ranges.len(), ranges.iter().count()), (0, 0));
}
