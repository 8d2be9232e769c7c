//! *Quick lists*: freed ranges of a roomy space, kept whole for the next request of their size.
//!
//! A space is *roomy* while one hole fills at least half of it. No placement can then make a
//! request fail, and coalescing a freed range only to cut it again is wasted work. The range is
//! therefore *deferred* in the list of its exact size, and the next request of that size takes it
//! from there. No node, hole or bin is touched (Weinstock and Wulf, *Quick Fit: an efficient
//! algorithm for heap storage allocation*, 1988; the fast bins of Lea's malloc).
//!
//! The lists hold little: [`ENTRIES`] ranges, none above 1/[`PART_OF_SPACE`] of the space. A
//! longer request, and every request of a space that is no longer roomy, coalesces them first. So
//! does every operation that reads the chain or the bins. Sizes that are requested no more would
//! occupy the lists for ever. The ranges are therefore coalesced after [`STALE_AFTER`] frees
//! that found no place.

use crate::sync::MODELLED;

use super::deferred::DeferredFree;
use super::ranges::RangeTable;

/// Ranges in all lists together. Loom's threads have small stacks, and a new space is made there.
const ENTRIES: usize = if MODELLED { 8 } else { 64 };
/// Lists, each for one size at a time.
const LISTS: usize = if MODELLED { 8 } else { 64 };
/// The least part of the space that is too long for a list.
const PART_OF_SPACE: u64 = 16;
/// Frees that found no place after which the ranges are coalesced.
const STALE_AFTER: u32 = 1024;
/// Index of no entry.
const NONE: u8 = ENTRIES as u8;

/// A range in a list, and the next entry of its list or of the unused entries.
#[derive(Clone, Copy, Default)]
struct QuickEntry {
    offset: u64,
    node: u32,
    next: u8,
}

/// The lists.
pub(super) struct QuickLists {
    /// The size of each list; that of an empty list says nothing.
    sizes: [u64; LISTS],
    /// First entry of each list, or `NONE`.
    heads: [u8; LISTS],
    entries: [QuickEntry; ENTRIES],
    /// First unused entry, or `NONE`.
    unused: u8,
    /// Frees that found no place since the ranges were last coalesced.
    missed: u32,
    len: usize,
    /// Sum of the sizes.
    bytes: u64,
}

/// Returns the list for `size`: Fibonacci hashing, which spreads the multiples of a number.
#[inline(always)]
fn list_of(size: u64) -> usize {
    (size.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - LISTS.ilog2())) as usize
}

impl QuickLists {
    pub(super) fn new() -> Self {
        let next = |i| QuickEntry { next: i as u8 + 1, ..QuickEntry::default() };
        QuickLists {
            sizes: [0; LISTS],
            heads: [NONE; LISTS],
            entries: std::array::from_fn(next),
            unused: 0,
            missed: 0,
            len: 0,
            bytes: 0,
        }
    }

    /// Returns whether ranges of `size` bytes may be kept in a space of `capacity` bytes, and
    /// whether a request for them leaves the others alone.
    #[inline(always)]
    pub(super) fn admit(size: u64, capacity: u64) -> bool {
        size <= capacity / PART_OF_SPACE
    }

    /// Returns whether no range is kept.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of ranges, and the sum of their sizes.
    #[inline(always)]
    pub(super) fn totals(&self) -> (usize, u64) {
        (self.len, self.bytes)
    }

    /// Returns the range of exactly this size that was freed last, if there is one.
    #[inline(always)]
    pub(super) fn pop(&mut self, size: u64) -> Option<DeferredFree> {
        let list = list_of(size);
        let head = self.heads[list];
        if self.sizes[list] != size {
            return None;
        }
        let entry = self.entries.get_mut(usize::from(head))?;
        let QuickEntry { offset, node, next } = *entry;
        entry.next = self.unused;
        (self.unused, self.heads[list]) = (head, next);
        self.len -= 1;
        self.bytes -= size;
        Some(DeferredFree { node, offset, size })
    }

    /// Keeps a range. Returns false if its list is that of another size, or if no entry is left.
    #[inline(always)]
    pub(super) fn push(&mut self, DeferredFree { node, offset, size }: DeferredFree) -> bool {
        let (list, unused) = (list_of(size), self.unused);
        let head = self.heads[list];
        let of_this_size = head == NONE || self.sizes[list] == size;
        let entry = self.entries.get_mut(usize::from(unused)).filter(|_| of_this_size);
        let Some(entry) = entry else {
            self.missed += 1;
            return false;
        };
        self.unused = entry.next;
        *entry = QuickEntry { offset, node, next: head };
        (self.heads[list], self.sizes[list]) = (unused, size);
        self.len += 1;
        self.bytes += size;
        true
    }

    /// Returns whether the lists seem to hold sizes that are requested no more.
    #[inline(always)]
    pub(super) fn are_stale(&self) -> bool {
        self.missed > STALE_AFTER
    }

    /// Coalesces the ranges, of which there is at least one. O([`ENTRIES`]).
    #[cold]
    #[inline(never)]
    pub(super) fn coalesce_all(&mut self, ranges: &mut RangeTable) {
        for list in 0..LISTS {
            while let Some(DeferredFree { node, offset, size }) = self.pop(self.sizes[list]) {
                ranges.release(node, offset, size);
                ranges.trim_holes(1);
            }
        }
        self.missed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(node: u32, size: u64) -> DeferredFree {
        DeferredFree { node, offset: 100 * u64::from(node), size }
    }

    #[test]
    fn a_range_comes_back_to_its_own_size_only_and_the_last_one_first() {
        let mut lists = QuickLists::new();
        assert!(lists.push(freed(1, 4096)) && lists.push(freed(2, 4096)));
        assert!(lists.pop(4095).is_none() && lists.pop(0).is_none());
        assert_eq!(lists.totals(), (2, 8192));
        let order = [lists.pop(4096), lists.pop(4096)].map(|freed| freed.unwrap().node);
        assert_eq!(order, [2, 1]);
        assert!(lists.pop(4096).is_none());
        assert_eq!(lists.totals(), (0, 0));
    }

    #[test]
    fn the_entries_have_an_end_and_are_used_again() {
        let mut lists = QuickLists::new();
        for round in 1..4 {
            let kept = (0..2 * ENTRIES as u32).filter(|&i| lists.push(freed(i, 64))).count();
            assert_eq!((kept, lists.missed), (ENTRIES, round * ENTRIES as u32));
            while lists.pop(64).is_some() {}
            assert_eq!(lists.totals(), (0, 0));
        }
    }

    #[test]
    fn two_sizes_of_one_list_take_turns() {
        let mut lists = QuickLists::new();
        let other = (2..).find(|&size| list_of(size) == list_of(1)).unwrap();
        assert!(lists.push(freed(1, 1)) && !lists.push(freed(2, other)));
        assert!(lists.pop(other).is_none() && lists.pop(1).is_some());
        assert!(lists.push(freed(2, other)) && lists.pop(1).is_none());
        assert_eq!(lists.pop(other).unwrap().node, 2);
    }

    #[test]
    fn the_lists_are_stale_after_many_frees_without_a_place() {
        let mut lists = QuickLists::new();
        (0..ENTRIES as u32).for_each(|node| assert!(lists.push(freed(node, 64))));
        for missed in 1..=STALE_AFTER + 2 {
            assert!(!lists.push(freed(ENTRIES as u32 + missed, 64)));
            assert_eq!(lists.are_stale(), missed > STALE_AFTER);
        }
    }
}
