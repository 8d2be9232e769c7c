//! *LRU*: the blocks of a shard in the order of their last uses.
//!
//! One [ring](super::rings), and for each block the time of its last use, by the cache's
//! [clock](super::clock): so the oldest of one shard can be compared with that of another.

use super::clock::{EvictedCount, Rank, Time, inserted_at, order};
use super::eviction_policy::{EvictionPolicy, Slot};
use super::rings::Rings;
use crate::sync::prefetch;

/// Evicts the least recently used block. 32 bytes for each slot.
#[derive(Debug, Default)]
pub(in crate::cache) struct Lru {
    ring: Rings<1, Used>,
    evicted: EvictedCount,
    /// The time of the next calls.
    pub(super) now: Time,
}

/// A block and its last use.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    hash: u64,
    time: Time,
    /// The place of the block in its prefix.
    depth: u32,
}

impl Lru {
    /// The rank of the next victim.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Rank> {
        Some(self.evicted.rank(self.ring.of(self.ring.first(0)?).time))
    }

    /// Returns the next victims in order, if none is used or pinned before.
    #[inline]
    pub(super) fn upcoming(&self) -> impl Iterator<Item = Slot> + '_ {
        self.ring.iter(0)
    }

    /// Returns the hash of the block that is or was last at a slot.
    #[inline]
    pub(super) fn hash_of(&self, slot: Slot) -> Option<u64> {
        self.ring.get(slot).map(|used| used.hash)
    }

    /// Starts to fetch what the eviction of a block reads here.
    #[inline]
    pub(super) fn prefetch(&self, slot: Slot) {
        prefetch(self.ring.of(slot));
    }

    /// Returns the block to evict, and removes it; see [`EvictionPolicy::victim`].
    #[inline]
    pub(super) fn next_victim(
        &mut self,
        may_go: &mut impl FnMut(Slot, u64) -> bool,
    ) -> Option<Slot> {
        // A pinned block counts as used, so the next search does not meet it again. The search ends
        // when it meets the first of them again.
        let mut first_pinned = None;
        loop {
            let slot = self.ring.first(0).filter(|&slot| first_pinned != Some(slot))?;
            if may_go(slot, self.ring.of(slot).hash) {
                self.ring.take(slot);
                self.evicted.more(self.ring.of(slot).time);
                return Some(slot);
            }
            first_pinned.get_or_insert(slot);
            self.touch(slot);
        }
    }

    /// Inserts a block that is in no order at the place of its time and depth.
    #[inline]
    fn place(&mut self, slot: Slot, Used { hash, time, depth }: Used) {
        let own = order(time, depth);
        let is_later = |other: &Used| order(other.time, other.depth) > own;
        let before = self.ring.push_before(0, slot, is_later);
        // The walk may have ended too early.
        let least = before.map_or(0, |before| self.ring.of(before).time);
        *self.ring.of_mut(slot) = Used { hash, time: time.max(least), depth };
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, slot: Slot, hash: u64) {
        self.insert_at_depth(slot, hash, 0);
    }

    #[inline]
    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        self.ring.reach(slot);
        self.place(slot, Used { hash, time: inserted_at(self.now, depth), depth });
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        self.ring.take(slot);
        self.place(slot, Used { time: self.now, ..*self.ring.of(slot) });
    }

    fn remove(&mut self, slot: Slot) {
        self.ring.take(slot);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.next_victim(&mut |slot, _| may_go(slot))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::clock::time_of;
    use super::*;

    fn order(lru: &mut Lru) -> Vec<Slot> {
        std::iter::from_fn(|| lru.victim(&mut |_| true)).collect()
    }

    #[test]
    fn the_end_of_a_prefix_is_evicted_before_its_start_in_any_order_of_use() {
        for forward in [true, false] {
            let mut lru = Lru { now: 100, ..Lru::default() };
            lru.insert(8, 0);
            let depths: Vec<u32> = if forward { (0..8).collect() } else { (0..8).rev().collect() };
            for &depth in &depths {
                lru.now += 1;
                lru.insert_at_depth(depth, 0, depth);
            }
            let mut all: Vec<Slot> = (0..8).rev().collect();
            // The blocks that were committed first are as old as the block before them.
            let inserted = order(&mut lru);
            assert_eq!(inserted.iter().copied().filter(|&slot| slot < 8).collect::<Vec<_>>(), all);
            depths.iter().for_each(|&depth| lru.insert_at_depth(depth, 0, depth));
            lru.now += 100;
            lru.insert(8, 0);
            lru.now += 1;
            depths.iter().for_each(|&depth| lru.touch(depth));
            all.insert(0, 8);
            assert_eq!(order(&mut lru), all, "forward: {forward}");
        }
    }

    #[test]
    fn it_says_how_old_the_next_victim_is() {
        let mut lru = Lru::default();
        for slot in 0..3 {
            lru.now = 10 + Time::from(slot);
            lru.insert(slot, 0);
        }
        assert_eq!(lru.oldest().map(time_of), Some(10));
        lru.now = 20;
        lru.touch(0);
        assert_eq!(lru.oldest().map(time_of), Some(11));
        assert_eq!(lru.upcoming().collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!((order(&mut lru), lru.oldest()), (vec![1, 2, 0], None));
    }

    #[test]
    fn a_removed_block_is_no_victim_and_a_pinned_one_counts_as_used() {
        let mut lru = Lru::default();
        (0..5).for_each(|slot| lru.insert(slot, u64::from(slot)));
        lru.remove(1);
        assert_eq!((lru.hash_of(3), lru.hash_of(5)), (Some(3), None));
        assert_eq!(lru.victim(&mut |slot| slot > 2), Some(3));
        assert_eq!(lru.victim(&mut |_| false), None);
        assert_eq!(order(&mut lru), [4, 0, 2]);
    }
}
