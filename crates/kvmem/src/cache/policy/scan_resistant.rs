//! *Scan-resistant*: evicts the block that is worth least, by the [history](super::history) of its
//! shard.
//!
//! Each shard keeps one ring of blocks for each kind, in the order of their last uses. The history
//! has the rings, and says which of them loses its first block.
//!
//! Invariants: (1) a slot with a block is in the ring of its kind, and no other slot is in any; (2)
//! a ring is in the order of `used`.

use std::sync::Arc;

use super::clock::{ORDERS, Rank, Time, inserted_at, order};
use super::eviction_policy::{EvictionPolicy, Slot};
use super::history::{History, KnownBlock};
use super::reuse::{KINDS, Reuse};

/// The policy of one shard.
#[derive(Debug)]
pub(in crate::cache) struct ScanResistant {
    history: History,
    /// The worth of LRU's candidate among several shards; `None`: this shard's candidate counts.
    pub(super) other: Option<f32>,
    /// The ring of the next victim, if the caller has chosen it already.
    pub(super) chosen: Option<usize>,
    /// The ring of the last victim, and probably of the next.
    last: usize,
}

impl ScanResistant {
    /// Makes the policy of one shard. Shards with one `reuse` share the model.
    pub(super) fn new(reuse: Arc<Reuse>) -> Self {
        let history = History::sharing(reuse);
        ScanResistant { history, other: None, chosen: None, last: 0 }
    }

    /// Sets the time of the next calls.
    #[inline]
    pub(super) fn set_now(&mut self, now: Time) {
        self.history.now = now;
    }

    /// Chooses the ring of the last victim again, if it has blocks.
    #[inline]
    pub(super) fn repeat_choice(&mut self) {
        self.chosen = self.history.rings.first(self.last).map(|_| self.last);
    }

    /// Returns the first block of each ring.
    fn firsts(&self) -> [Option<Slot>; KINDS] {
        std::array::from_fn(|kind| self.history.rings.first(kind))
    }

    /// Returns the rank of the first block of each ring.
    pub(super) fn oldest(&self) -> [Rank; ORDERS] {
        self.history.ranks(self.firsts())
    }

    /// Returns the next victims in order, if they are of the kind of the last one.
    #[inline]
    pub(super) fn upcoming(&self) -> impl Iterator<Item = Slot> + '_ {
        self.history.rings.iter(self.last)
    }

    /// Returns the hash of the block that is or was last at a slot.
    #[inline]
    pub(super) fn hash_of(&self, slot: Slot) -> Option<u64> {
        self.history.rings.get(slot).map(|block| block.hash)
    }

    /// Starts to fetch what the eviction of a block reads here.
    #[inline]
    pub(super) fn prefetch(&self, slot: Slot, hash: u64) {
        self.history.prefetch(slot, hash);
    }

    /// Inserts a block into the ring of its kind, as last used at `time`.
    fn place(&mut self, slot: Slot, time: Time) {
        let (kind, own) = (self.history.kind(slot), order(time, self.history.entry(slot).depth));
        let is_later = |other: &KnownBlock| order(other.used, other.depth) > own;
        let before = self.history.rings.push_before(kind, slot, is_later);
        // The walk may have ended too early.
        let least = before.map_or(0, |before| self.history.entry(before).used);
        self.history.set_used(slot, time.max(least));
    }
}

impl ScanResistant {
    /// Returns the block to evict, and removes it; see [`EvictionPolicy::victim`].
    pub(super) fn next_victim(
        &mut self,
        may_go: &mut impl FnMut(Slot, u64) -> bool,
    ) -> Option<Slot> {
        self.history.learn();
        // Pinned blocks stay out of the rings until the search ends, so it meets each only once.
        let mut pinned = Vec::new();
        let found = loop {
            let ring =
                self.chosen.take().or_else(|| self.history.choose(self.firsts(), self.other));
            let Some(slot) = ring.and_then(|ring| self.history.rings.first(ring)) else {
                break None;
            };
            self.history.rings.take(slot);
            if may_go(slot, self.history.entry(slot).hash) {
                self.last = ring.unwrap_or(0);
                self.history.evict(slot);
                break Some(slot);
            }
            pinned.push(slot);
        };
        for slot in pinned {
            // A pinned block is in use: the next search does not meet it again.
            self.place(slot, self.history.now);
        }
        found
    }
}

impl EvictionPolicy for ScanResistant {
    fn insert(&mut self, slot: Slot, hash: u64) {
        self.insert_at_depth(slot, hash, 0);
    }

    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        self.history.insert_at_depth(slot, hash, depth);
        self.place(slot, inserted_at(self.history.now, depth));
    }

    fn touch(&mut self, slot: Slot) {
        self.history.rings.take(slot);
        self.history.touch(slot);
        self.place(slot, self.history.now);
    }

    fn remove(&mut self, slot: Slot) {
        self.history.rings.take(slot);
        self.history.remove(slot);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.next_victim(&mut |slot, _| may_go(slot))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
