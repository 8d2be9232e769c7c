//! *Scan-resistant*: evicts the block that is worth least, by a [learned](super::reuse) model.
//!
//! Each shard keeps one ring of blocks for each kind, in the order of their last uses. Within a
//! kind the oldest block is worth least, so the victim is the first block of one of the rings. Two
//! candidates decide which: LRU's, the oldest of all, and the one that is worth least. Counts are
//! estimates, and so are worths: LRU's candidate is evicted unless the other is worth clearly less,
//! less than [`CLEARLY`](super::candidates::CLEARLY) of it. LRU's candidate is evicted, too, while
//! the [shadow LRU](super::shadow_lru) says that LRU finds more.
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
//! Invariants: (1) a slot with a block is in the ring of its kind, and no other slot is in any; (2)
//! a ring is in the order of `used`; (3) each entry is free, of a held block, or of a ghost; (4) an
//! item of the queue whose time is not that of its entry belongs to a ghost that has returned.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;

use super::candidates::Candidates;
use super::clock::{EvictedCount, NONE, ORDERS, Rank, Time, inserted_at, order};
use super::eviction_policy::{EvictionPolicy, Slot};
use super::reuse::{Event, KINDS, Reuse, kind};
use super::rings::Rings;
use super::shadow_lru::{EntryId, ShadowLru};

/// See the head of the file.
const SOON: u64 = 32;
/// A ghost is dropped after as many insertions as the cache holds blocks, times this number.
const REMEMBERED: u64 = 4;
/// Number of events that a shard collects before the model counts them.
const COLLECTED: usize = 16;

/// The history of a block that is held or a ghost.
#[derive(Clone, Copy, Debug)]
struct KnownBlock {
    hash: u64,
    /// The time of the last use.
    used: Time,
    uses: u8,
    /// Whether the block is a ghost.
    evicted: bool,
    /// The age at which the model counted it as not used again; 0: not yet.
    given_up: u32,
    /// Number of blocks before this one in its prefix.
    depth: u32,
}

/// A ghost, in the order of eviction.
#[derive(Clone, Copy, Debug)]
struct GhostRecord {
    id: EntryId,
    /// The block's last use.
    used: Time,
    at: Time,
}

/// The policy of one shard.
#[derive(Debug)]
pub(in crate::pool::kv_cache) struct ScanResistant {
    rings: Rings<KINDS>,
    /// Entries by slot.
    ids: Vec<EntryId>,
    len: usize,
    entries: Vec<KnownBlock>,
    free: Vec<EntryId>,
    /// Entries of ghosts by hash.
    ghosts: HashTable<EntryId>,
    queue: VecDeque<GhostRecord>,
    /// Items at the front of the queue that are given up.
    given_up: usize,
    shadow: ShadowLru,
    events: Vec<Event>,
    /// Evictions with the same time, by ring.
    evicted: [EvictedCount; KINDS],
    reuse: Arc<Reuse>,
    /// The time of the next calls.
    pub(super) now: Time,
    /// The worth of LRU's candidate among several shards; `None`: this shard's candidate counts.
    pub(super) other: Option<f32>,
}

impl ScanResistant {
    /// Makes the policy of one shard. Shards with one `reuse` share the model.
    pub(super) fn new(reuse: Arc<Reuse>) -> Self {
        ScanResistant {
            rings: Rings::default(),
            ids: Vec::new(),
            len: 0,
            entries: Vec::new(),
            free: Vec::new(),
            ghosts: HashTable::new(),
            queue: VecDeque::new(),
            given_up: 0,
            shadow: ShadowLru::default(),
            events: Vec::with_capacity(COLLECTED),
            evicted: [EvictedCount::default(); KINDS],
            reuse,
            now: 0,
            other: None,
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

    fn entry(&self, slot: Slot) -> &KnownBlock {
        &self.entries[self.ids[slot as usize] as usize]
    }

    /// Returns the rank of the first block of each ring.
    pub(super) fn oldest(&self) -> [Rank; ORDERS] {
        let rank = |ring: usize, slot: Slot| self.evicted[ring].rank(self.entry(slot).used);
        std::array::from_fn(|ring| self.rings.first(ring).map_or(NONE, |slot| rank(ring, slot)))
    }

    /// Returns the next victim, pinned or not.
    fn choose(&self) -> Option<Slot> {
        let candidates = Candidates::of(&self.reuse, self.now, self.oldest())?;
        self.rings.first(candidates.trusted_choice(&self.reuse, self.other).ring)
    }

    /// Inserts a block into the ring of its kind, as last used at `time`.
    fn place(&mut self, slot: Slot, time: Time) {
        let id = self.ids[slot as usize] as usize;
        let KnownBlock { uses, depth, .. } = self.entries[id];
        let (entries, ids) = (&self.entries, &self.ids);
        let is_later = |other: Slot| {
            let other = &entries[ids[other as usize] as usize];
            order(other.used, other.depth) > order(time, depth)
        };
        let before = self.rings.push_before(kind(uses), slot, is_later);
        // The walk may have ended too early.
        let least = before.map_or(0, |before| self.entry(before).used);
        self.entries[id].used = time.max(least);
    }

    /// Records a use in the shadow LRU. Returns whether the shadow LRU held the block.
    fn touch_shadow(&mut self, slot: Slot) -> bool {
        let comparison = &self.reuse.comparison;
        let held = self.shadow.touch(self.ids[slot as usize], self.now, comparison);
        self.shadow.evict(comparison);
        held
    }

    /// Removes a block from its ring.
    fn take(&mut self, slot: Slot) {
        self.rings.take(slot);
        self.len -= 1;
        self.reuse.comparison.remove_held();
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
        self.shadow.remove(id, &self.reuse.comparison);
        self.free.push(id);
    }
}

impl EvictionPolicy for ScanResistant {
    fn insert(&mut self, slot: Slot, hash: u64) {
        self.insert_at_depth(slot, hash, 0);
    }

    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        let fresh = KnownBlock { hash, used: 0, uses: 0, evicted: false, given_up: 0, depth };
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
        self.place(slot, inserted_at(self.now, depth));
        self.len += 1;
        self.reuse.comparison.add_held();
        if self.touch_shadow(slot) {
            self.reuse.comparison.note(-1);
        }
    }

    fn touch(&mut self, slot: Slot) {
        let KnownBlock { used, uses, .. } = *self.entry(slot);
        let age = self.now.saturating_sub(used);
        self.rings.take(slot);
        if age * SOON >= self.held() {
            self.record(Event::used(uses, age));
            self.entries[self.ids[slot as usize] as usize].uses = uses.saturating_add(1);
        }
        self.place(slot, self.now);
        if !self.touch_shadow(slot) {
            self.reuse.comparison.note(1);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.take(slot);
        self.release(self.ids[slot as usize]);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        if self.reuse.is_due(self.now, self.held()) {
            self.reuse.learn();
        }
        // Pinned blocks stay out of the rings until the search ends, so it meets each only once.
        let mut pinned = Vec::new();
        let found = loop {
            let Some(slot) = self.choose() else { break None };
            let KnownBlock { used, uses, .. } = *self.entry(slot);
            self.take(slot);
            if may_go(slot) {
                self.evicted[kind(uses)].more(used);
                self.remember(slot);
                break Some(slot);
            }
            pinned.push(slot);
        };
        for slot in pinned {
            // A pinned block is in use: the next search does not meet it again.
            self.place(slot, self.now);
            self.len += 1;
            self.reuse.comparison.add_held();
            self.touch_shadow(slot);
        }
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
