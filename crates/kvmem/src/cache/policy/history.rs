//! *History*: how often and when blocks were used, those held and those evicted lately, and which
//! block a [learned](super::reuse) model evicts next.
//!
//! The owner keeps an order of blocks for each kind, by their last uses. Within a kind the oldest
//! block is worth least, so the victim is the first block of one of the orders. Two candidates
//! decide which: LRU's, the oldest of all, and the one that is worth least. Counts are estimates,
//! and so are worths: LRU's candidate is evicted unless the other is worth clearly less, less than
//! [`CLEARLY`](super::candidates::CLEARLY) of it. LRU's candidate is evicted, too, while the
//! [shadow LRU](super::shadow_lru) says that LRU finds more.
//!
//! Two uses close together count as one: a server looks a block up twice for one request, which
//! says nothing of the next request. A use at an age of less than 1 / [`SOON`] of the blocks held
//! makes a block young, and does not change its kind.
//!
//! *Ghosts.* An evicted block leaves its uses and its times behind, in the table of
//! [ghosts](super::ghosts). A miss of a ghost is a use, and the block returns with its kind. The
//! model counts a ghost as not used again after as many blocks have come as are held, and takes
//! that back if the ghost returns later. The ghost is dropped after four times as many: blocks that
//! return after more than that look new. The limits are times, the same in all shards. So the ghost
//! of a prefix's start outlives that of its end, and the start never returns as a lower kind.

use std::sync::Arc;

use super::candidates::Candidates;
use super::clock::{EvictedCount, NONE, Rank, Time};
use super::eviction_policy::Slot;
use super::ghosts::{Aged, Ghost, Ghosts};
use super::reuse::{Event, KINDS, Reuse, kind};
use super::rings::Rings;
use super::shadow_lru::ShadowLru;
use crate::sync::prefetch;

/// See the head of the file.
const SOON: u64 = 32;
/// Number of events that are collected before the model counts them.
const COLLECTED: usize = 16;

/// A block that is held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownBlock {
    pub(super) hash: u64,
    /// The time of the last use.
    pub(super) used: Time,
    /// Number of blocks before this one in its prefix.
    pub(super) depth: u32,
    pub(super) uses: u8,
}

/// The history of the blocks of one cache, or of one shard, for an owner that keeps the orders of
/// its blocks itself: of [`History::KINDS`] kinds, each by last use.
///
/// # Time complexity
///
/// Each call takes amortized O(1). Once in a quarter of as many insertions as there are blocks, the
/// model is computed anew, which takes some ten thousand steps.
///
/// # Panics
///
/// A call for a slot without a block is a mistake of the owner, and may panic.
#[derive(Debug)]
pub struct History {
    /// The blocks by slot, and the orders of an owner within this module.
    pub(super) rings: Rings<KINDS, KnownBlock>,
    len: usize,
    pub(super) ghosts: Ghosts,
    shadow: ShadowLru,
    /// Changes of the number of blocks that the shards do not share yet.
    uncounted: i64,
    events: Vec<Event>,
    /// Evictions with the same time, by kind.
    evicted: [EvictedCount; KINDS],
    pub(super) reuse: Arc<Reuse>,
    /// The time of the next calls.
    pub(super) now: Time,
}

impl Default for History {
    fn default() -> Self {
        History::sharing(Arc::default())
    }
}

impl History {
    /// Number of kinds of blocks, by their uses.
    pub const KINDS: usize = KINDS;

    /// Makes the history of one shard. Shards with one `reuse` share the model.
    pub(super) fn sharing(reuse: Arc<Reuse>) -> Self {
        History {
            rings: Rings::default(),
            len: 0,
            ghosts: Ghosts::default(),
            shadow: ShadowLru::default(),
            uncounted: 0,
            events: Vec::with_capacity(COLLECTED),
            evicted: [EvictedCount::default(); KINDS],
            reuse,
            now: 0,
        }
    }

    /// Adds the block at `slot`, which was empty, as used now. `hash` is the hash of its key: the
    /// same whenever the key comes again, and well mixed. A ghost returns with its kind.
    pub fn insert(&mut self, slot: Slot, hash: u64) {
        self.now += 1;
        self.insert_at_depth(slot, hash, 0);
    }

    /// Adds a block at the time that it is, as [`insert`](Self::insert) does. `depth` blocks of its
    /// prefix come before it.
    pub(super) fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        self.len += 1;
        self.reuse.comparison.change_held(&mut self.uncounted, 1);
        let held = self.held();
        self.shadow.fit(held);
        let History { ghosts, shadow, events, reuse, now, len, .. } = self;
        let ghost = ghosts.take(hash, *now, held);
        let mut uses = 0;
        if let Some(Ghost { used, uses: before, forgotten }) = ghost {
            record(Event::used(before, now.saturating_sub(used)), events, reuse);
            if let Some(age) = forgotten {
                record(Event::returned(before, age), events, reuse);
            }
            if shadow.holds(used, *len) {
                reuse.comparison.note(-1);
            }
            shadow.remove(used);
            uses = before.saturating_add(1);
        }
        shadow.add(*now, *len);
        self.rings.reach(slot);
        *self.rings.of_mut(slot) = KnownBlock { hash, used: self.now, depth, uses };
    }

    /// Records a use of the block at `slot`, which is young now. Its kind may rise.
    pub fn touch(&mut self, slot: Slot) {
        let KnownBlock { used, uses, .. } = *self.entry(slot);
        let age = self.now.saturating_sub(used);
        if age * SOON >= self.held() {
            record(Event::used(uses, age), &mut self.events, &self.reuse);
            self.rings.of_mut(slot).uses = uses.saturating_add(1);
        }
        if !self.shadow.holds(used, self.len) {
            self.reuse.comparison.note(1);
        }
        self.set_used(slot, self.now);
    }

    /// Changes the time of the last use of a block.
    pub(super) fn set_used(&mut self, slot: Slot, used: Time) {
        let before = std::mem::replace(&mut self.rings.of_mut(slot).used, used);
        if before != used {
            self.shadow.remove(before);
            self.shadow.add(used, self.len);
        }
    }

    /// Removes the block at `slot`, which was evicted and is a ghost from now on.
    pub fn evict(&mut self, slot: Slot) {
        let KnownBlock { hash, used, uses, .. } = *self.entry(slot);
        self.leave();
        self.evicted[kind(uses)].more(used);
        let held = self.held().max(1);
        let History { ghosts, shadow, events, reuse, now, len, .. } = self;
        ghosts.add(hash, (used, uses), *now, (held, *len), |what| age(what, shadow, events, reuse));
    }

    /// Starts to fetch what the eviction of the block at a slot reads, whose key has this hash.
    #[inline]
    pub(super) fn prefetch(&self, slot: Slot, hash: u64) {
        if let Some(entry) = self.rings.get(slot) {
            prefetch(entry);
            self.ghosts.prefetch(hash);
        }
    }

    /// Removes the block at `slot`, which left the cache otherwise, and forgets it.
    pub fn remove(&mut self, slot: Slot) {
        self.leave();
        self.shadow.remove(self.entry(slot).used);
    }

    /// Returns the kind of the block at `slot`, which is less than [`History::KINDS`].
    #[must_use]
    pub fn kind(&self, slot: Slot) -> usize {
        kind(self.entry(slot).uses)
    }

    /// Returns which of the first blocks of all orders, by kind, is evicted next; `None` if there
    /// are none.
    #[must_use]
    pub fn victim(&self, firsts: [Option<Slot>; KINDS]) -> Option<Slot> {
        firsts[self.choose(firsts, None)?]
    }

    /// Returns the kind of the next victim. `other` is the worth of LRU's candidate if that is in
    /// another shard.
    pub(super) fn choose(
        &self,
        firsts: [Option<Slot>; KINDS],
        other: Option<f32>,
    ) -> Option<usize> {
        let candidates = Candidates::of(&self.reuse, self.now, self.ranks(firsts))?;
        Some(candidates.trusted_choice(&self.reuse, other).ring)
    }

    /// Returns the ranks of the first blocks of all orders.
    pub(super) fn ranks(&self, firsts: [Option<Slot>; KINDS]) -> [Rank; KINDS] {
        let rank = |kind: usize, slot: Slot| self.evicted[kind].rank(self.entry(slot).used);
        std::array::from_fn(|kind| firsts[kind].map_or(NONE, |slot| rank(kind, slot)))
    }

    /// Updates the model if that is due.
    pub fn learn(&mut self) {
        if self.reuse.is_due(self.now, self.held()) {
            self.reuse.learn();
        }
    }

    /// Returns the number of blocks in the whole cache.
    fn held(&self) -> u64 {
        self.reuse.comparison.held()
    }

    pub(super) fn entry(&self, slot: Slot) -> &KnownBlock {
        self.rings.of(slot)
    }

    /// Counts a block that leaves.
    fn leave(&mut self) {
        self.len -= 1;
        self.reuse.comparison.change_held(&mut self.uncounted, -1);
    }
}

fn record(event: Event, events: &mut Vec<Event>, reuse: &Reuse) {
    events.push(event);
    if events.len() >= COLLECTED {
        reuse.count(events);
    }
}

/// Records what happened to a ghost.
fn age(what: Aged, shadow: &mut ShadowLru, events: &mut Vec<Event>, reuse: &Reuse) {
    match what {
        Aged::Forgotten { uses, age } => record(Event::forgotten(uses, age), events, reuse),
        Aged::Dropped { used } => shadow.remove(used),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
