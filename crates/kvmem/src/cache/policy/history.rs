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
//! *Ghosts.* An evicted block leaves its hash, its uses and its times behind. A miss of a ghost is
//! a use, and the block returns with its kind. The model counts a ghost as not used again after as
//! many blocks have come as are held, and takes that back if the ghost returns later. The ghost is
//! dropped after [`REMEMBERED`] times as many: blocks that return after more than that look new.
//! The limits are times, the same in all shards. So the ghost of a prefix's start outlives that of
//! its end, and the start never returns as a lower kind.
//!
//! Invariants: (1) each entry is free, of a held block, or of a ghost; (2) an item of the queue
//! whose time is not that of its entry belongs to a ghost that has returned.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;

use super::candidates::Candidates;
use super::clock::{EvictedCount, NONE, Rank, Time};
use super::eviction_policy::Slot;
use super::reuse::{Event, KINDS, Reuse, kind};
use crate::sync::prefetch;

use super::shadow_lru::{EntryId, ShadowLru, Uncounted};

/// See the head of the file.
const SOON: u64 = 32;
/// A ghost is dropped after as many insertions as the cache holds blocks, times this number.
const REMEMBERED: u64 = 4;
/// Number of events that are collected before the model counts them.
const COLLECTED: usize = 16;

/// A block that is held or a ghost.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownBlock {
    hash: u64,
    /// The time of the last use.
    pub(super) used: Time,
    pub(super) uses: u8,
    /// Whether the block is a ghost.
    evicted: bool,
    /// The age at which the model counted it as not used again; 0: not yet.
    given_up: u32,
    /// Number of blocks before this one in its prefix.
    pub(super) depth: u32,
}

/// A ghost, in the order of eviction.
#[derive(Clone, Copy, Debug)]
struct GhostRecord {
    id: EntryId,
    /// The block's last use.
    used: Time,
    at: Time,
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
    /// Entries by slot.
    ids: Vec<EntryId>,
    len: usize,
    pub(super) entries: Vec<KnownBlock>,
    free: Vec<EntryId>,
    /// Entries of ghosts by hash.
    pub(super) ghosts: HashTable<EntryId>,
    queue: VecDeque<GhostRecord>,
    /// Items at the front of the queue that are abandoned.
    given_up: usize,
    shadow: ShadowLru,
    uncounted: Uncounted,
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
            ids: Vec::new(),
            len: 0,
            entries: Vec::new(),
            free: Vec::new(),
            ghosts: HashTable::new(),
            queue: VecDeque::new(),
            given_up: 0,
            shadow: ShadowLru::default(),
            uncounted: Uncounted::default(),
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
        let used = self.now;
        let fresh = KnownBlock { hash, used, uses: 0, evicted: false, given_up: 0, depth };
        let id = match self.ghost(hash) {
            Some(id) => {
                let KnownBlock { used, uses, given_up, .. } = self.entries[id as usize];
                let age = self.now.saturating_sub(used);
                self.record(Event::used(uses, age));
                if given_up > 0 {
                    self.record(Event::returned(uses, Time::from(given_up)));
                }
                self.entries[id as usize] = KnownBlock { uses: uses.saturating_add(1), ..fresh };
                id
            }
            None => match self.free.pop() {
                Some(id) => {
                    self.entries[id as usize] = fresh;
                    id
                }
                None => {
                    self.entries.push(fresh);
                    (self.entries.len() - 1) as EntryId
                }
            },
        };
        if self.ids.len() <= slot as usize {
            self.ids.resize(slot as usize + 1, 0);
        }
        self.ids[slot as usize] = id;
        self.len += 1;
        self.reuse.comparison.change_held(&mut self.uncounted, 1);
        if self.touch_shadow(slot) {
            self.reuse.comparison.note(-1);
        }
    }

    /// Records a use of the block at `slot`, which is young now. Its kind may rise.
    pub fn touch(&mut self, slot: Slot) {
        let KnownBlock { used, uses, .. } = *self.entry(slot);
        let age = self.now.saturating_sub(used);
        if age * SOON >= self.held() {
            self.record(Event::used(uses, age));
            self.entry_mut(slot).uses = uses.saturating_add(1);
        }
        self.entry_mut(slot).used = self.now;
        if !self.touch_shadow(slot) {
            self.reuse.comparison.note(1);
        }
    }

    /// Removes the block at `slot`, which was evicted and is a ghost from now on.
    pub fn evict(&mut self, slot: Slot) {
        let KnownBlock { used, uses, .. } = *self.entry(slot);
        self.leave();
        self.evicted[kind(uses)].more(used);
        self.remember(slot);
    }

    /// Starts to fetch what the eviction of a block reads.
    #[inline]
    pub(super) fn prefetch(&self, slot: Slot) {
        if let Some(&id) = self.ids.get(slot as usize) {
            prefetch(&self.entries[id as usize]);
        }
    }

    /// Removes the block at `slot`, which left the cache otherwise, and forgets it.
    pub fn remove(&mut self, slot: Slot) {
        self.leave();
        self.release(self.ids[slot as usize]);
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

    fn record(&mut self, event: Event) {
        self.events.push(event);
        if self.events.len() >= COLLECTED {
            self.reuse.count(&mut self.events);
        }
    }

    pub(super) fn entry(&self, slot: Slot) -> &KnownBlock {
        &self.entries[self.ids[slot as usize] as usize]
    }

    pub(super) fn entry_mut(&mut self, slot: Slot) -> &mut KnownBlock {
        &mut self.entries[self.ids[slot as usize] as usize]
    }

    /// Records a use in the shadow LRU. Returns whether the shadow LRU held the block.
    pub(super) fn touch_shadow(&mut self, slot: Slot) -> bool {
        let comparison = &self.reuse.comparison;
        let own = &mut self.uncounted;
        let held = self.shadow.touch(self.ids[slot as usize], self.now, comparison, own);
        self.shadow.evict(comparison, own);
        held
    }

    /// Counts a block that leaves.
    fn leave(&mut self) {
        self.len -= 1;
        self.reuse.comparison.change_held(&mut self.uncounted, -1);
    }

    /// Makes a ghost of the block at a slot, and drops ghosts that are too old.
    fn remember(&mut self, slot: Slot) {
        let id = self.ids[slot as usize];
        let KnownBlock { hash, used, .. } = self.entries[id as usize];
        if let Some(other) = self.ghost(hash) {
            // A ghost of another key with the same hash.
            self.release(other);
        }
        let entry = &mut self.entries[id as usize];
        (entry.evicted, entry.given_up) = (true, 0);
        let entries = &self.entries;
        self.ghosts.insert_unique(hash, id, |&id| entries[id as usize].hash);
        self.queue.push_back(GhostRecord { id, used, at: self.now });
        self.age_ghosts();
    }

    fn age_ghosts(&mut self) {
        let held = self.held().max(1);
        while let Some(&eviction) = self.queue.get(self.given_up)
            && self.now - eviction.at > held
        {
            self.given_up += 1;
            if self.is_ghost(eviction) {
                let entry = &mut self.entries[eviction.id as usize];
                let age = self.now - entry.used;
                entry.given_up = u32::try_from(age).unwrap_or(u32::MAX);
                let event = Event::forgotten(entry.uses, age);
                self.record(event);
            }
        }
        // With blocks of several sizes, one insertion may evict several blocks.
        let max = (2 * REMEMBERED as usize).saturating_mul(self.len + 1);
        while let Some(&eviction) = self.queue.front()
            && (self.now - eviction.at > REMEMBERED * held || self.queue.len() > max)
        {
            self.queue.pop_front();
            self.given_up = self.given_up.saturating_sub(1);
            if self.is_ghost(eviction) {
                let hash = self.entries[eviction.id as usize].hash;
                self.ghost(hash);
                self.release(eviction.id);
            }
        }
    }

    fn is_ghost(&self, eviction: GhostRecord) -> bool {
        let entry = &self.entries[eviction.id as usize];
        entry.evicted && entry.used == eviction.used
    }

    /// Removes the ghost of a hash from the table.
    fn ghost(&mut self, hash: u64) -> Option<EntryId> {
        let entries = &self.entries;
        let found = self.ghosts.find_entry(hash, |&id| entries[id as usize].hash == hash).ok()?;
        Some(found.remove().0)
    }

    /// Frees an entry of a block that is neither held nor a ghost.
    fn release(&mut self, id: EntryId) {
        self.entries[id as usize].evicted = false;
        self.shadow.remove(id, &self.reuse.comparison, &mut self.uncounted);
        self.free.push(id);
    }
}
