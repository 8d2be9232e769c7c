//! *LRU*: when each block was used last, and a queue that learns of it late.
//!
//! A list by last use would change five entries at each use, on lines that other threads have just changed for other blocks. Here a
//! use writes one number, the *stamp*, and leaves the queue as it is: a heap of slots by the stamps that they had when they were queued.
//! When a block is wanted, the first of the heap is taken; if it was used since, it goes back with its new stamp. What comes out with the stamp it
//! went in with is the least recently used of all, for all others have later stamps than they are queued with, or the same. So the order is
//! exact, and each use costs at most one such return.
//!
//! Invariants: (1) `stamps[s]` is 0 just if there is no block at slot *s*; (2) each block has one entry in the heap with the stamp
//! `queued[s]`, and that is no later than its own; all other entries are of blocks that have gone, and after a removal they are at most 64
//! more than there are blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Policy, Slot};

/// The least recently used goes first.
#[derive(Debug, Default)]
pub(super) struct Lru {
    /// Uses so far.
    now: u64,
    /// By slot: when it was used last.
    stamps: Vec<u64>,
    /// By slot: its stamp in the heap.
    queued: Vec<u64>,
    /// The earliest first.
    heap: BinaryHeap<Reverse<(u64, Slot)>>,
    len: usize,
}

impl Lru {
    #[inline]
    fn stamp(&mut self, slot: Slot) -> u64 {
        self.now += 1;
        self.stamps[slot as usize] = self.now;
        self.now
    }

    fn queue(&mut self, slot: Slot, stamp: u64) {
        self.queued[slot as usize] = stamp;
        self.heap.push(Reverse((stamp, slot)));
    }

    /// Takes entries of blocks that have gone out of the heap when they are the most.
    fn tidy(&mut self) {
        if self.heap.len() > 2 * self.len + 64 {
            let Lru { stamps, queued, heap, .. } = self;
            heap.retain(|&Reverse((stamp, slot))| {
                stamps[slot as usize] != 0 && queued[slot as usize] == stamp
            });
        }
    }
}

impl Policy for Lru {
    fn insert(&mut self, slot: Slot, _hash: u64) {
        if slot as usize >= self.stamps.len() {
            self.stamps.resize(slot as usize + 1, 0);
            self.queued.resize(slot as usize + 1, 0);
        }
        let stamp = self.stamp(slot);
        self.queue(slot, stamp);
        self.len += 1;
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        self.stamp(slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.stamps[slot as usize] = 0;
        self.len -= 1;
        self.tidy();
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // What is pinned counts as used, so that the next search does not meet it again; after all have been met the search ends.
        let mut left = self.len;
        while left > 0 {
            let Reverse((queued, slot)) = self.heap.pop()?;
            let stamp = self.stamps[slot as usize];
            if stamp == 0 || self.queued[slot as usize] != queued {
                continue;
            }
            if stamp != queued {
                self.queue(slot, stamp);
            } else if may_go(slot) {
                self.stamps[slot as usize] = 0;
                self.len -= 1;
                return Some(slot);
            } else {
                let stamp = self.stamp(slot);
                self.queue(slot, stamp);
                left -= 1;
            }
        }
        None
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    fn order(lru: &mut Lru) -> Vec<Slot> {
        std::iter::from_fn(|| lru.victim(&mut |_| true)).collect()
    }

    fn of(slots: impl IntoIterator<Item = Slot>) -> Lru {
        let mut lru = Lru::default();
        slots.into_iter().for_each(|slot| lru.insert(slot, 0));
        lru
    }

    #[test]
    fn they_go_by_last_use() {
        let mut lru = of([2, 0, 1, 3]);
        lru.touch(2);
        lru.touch(2);
        lru.remove(1);
        assert_eq!(order(&mut lru), [0, 3, 2]);
        assert!(order(&mut lru).is_empty());
        lru.insert(1, 0);
        assert_eq!(order(&mut lru), [1]);
    }

    #[test]
    fn a_pinned_one_counts_as_used_when_it_is_met() {
        let mut lru = of(0..5);
        assert_eq!(lru.victim(&mut |slot| slot > 1), Some(2));
        assert_eq!(lru.victim(&mut |_| false), None);
        assert_eq!(order(&mut lru), [3, 4, 0, 1]);
    }
}
