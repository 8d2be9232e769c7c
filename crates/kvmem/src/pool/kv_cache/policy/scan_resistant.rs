//! *Scan-resistant*: evicts the block that is worth least, by a [learned](super::reuse) model.
//!
//! Each shard keeps one ring of blocks for each kind, in the order of their last uses. Within a
//! kind the oldest block is worth least, so the victim is the first block of one of the rings. Two
//! candidates decide which: LRU's, the oldest of all, and the one that is worth least. Counts are
//! estimates, and so are worths: LRU's candidate is evicted unless the other is worth clearly less,
//! less than [`CLEARLY`] of it. LRU's candidate is evicted, too, while the
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
//! Invariants: (1) a slot with a block is in the ring of its kind, and no other slot is in any; (2)
//! a ring is in the order of `used`; (3) each entry is free, of a held block, or of a ghost; (4) an
//! item of the queue whose time is not that of its entry belongs to a ghost that has returned.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;

use super::clock::{EvictedCount, NONE, ORDERS, Rank, Time, inserted_at, order, time_of};
use super::eviction::{EvictionPolicy, Slot};
use super::reuse::{Event, KINDS, Reuse, kind};
use super::rings::Rings;
use super::shadow_lru::{EntryId, ShadowLru};

/// A block is evicted before an older one only if its worth is below this fraction of the other's.
const CLEARLY: f32 = 0.8;
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

/// The first block of a ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::pool::kv_cache) struct First {
    ring: usize,
    rank: Rank,
    pub(in crate::pool::kv_cache) worth: f32,
}

impl First {
    /// Returns whether this block is worth less. Of blocks with the same worth, the lower kind is
    /// less, and then the earlier use.
    fn is_less(&self, other: &First) -> bool {
        let order = self.worth.total_cmp(&other.worth);
        order.then(self.ring.cmp(&other.ring)).then(self.rank.cmp(&other.rank)).is_lt()
    }
}

/// The two candidates for eviction: see the head of the file.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool::kv_cache) struct Candidates {
    /// LRU's candidate: the oldest block.
    pub(in crate::pool::kv_cache) oldest: First,
    /// The block that is worth least.
    pub(in crate::pool::kv_cache) least: First,
}

impl Candidates {
    /// Returns the candidates of the rings whose first blocks have these ranks; `None` if there are
    /// no blocks.
    pub(in crate::pool::kv_cache) fn of(
        reuse: &Reuse,
        now: Time,
        ranks: [Rank; ORDERS],
    ) -> Option<Self> {
        let firsts = ranks.into_iter().enumerate().filter(|&(_, rank)| rank != NONE);
        let worth = |ring, rank| reuse.worth(ring, now.saturating_sub(time_of(rank)));
        let mut firsts = firsts.map(|(ring, rank)| First { ring, rank, worth: worth(ring, rank) });
        let first = firsts.next()?;
        Some(firsts.fold(Candidates { oldest: first, least: first }, |so_far, first| {
            so_far.and(Candidates { oldest: first, least: first })
        }))
    }

    /// Returns the candidates of both sets; of equals those of `self`.
    pub(in crate::pool::kv_cache) fn and(self, other: Candidates) -> Candidates {
        Candidates {
            oldest: if other.oldest.rank < self.oldest.rank { other.oldest } else { self.oldest },
            least: if other.least.is_less(&self.least) { other.least } else { self.least },
        }
    }

    /// Returns the victim: [`choice`](Self::choice), or LRU's candidate while LRU finds more.
    pub(in crate::pool::kv_cache) fn trusted_choice(
        &self,
        reuse: &Reuse,
        other: Option<f32>,
    ) -> First {
        if reuse.comparison.is_trusted() { self.choice(other) } else { self.oldest }
    }

    /// Returns the victim. `other` is the worth of LRU's candidate if that is in another shard.
    pub(in crate::pool::kv_cache) fn choice(&self, other: Option<f32>) -> First {
        if self.least.worth < CLEARLY * other.unwrap_or(self.oldest.worth) {
            self.least
        } else {
            self.oldest
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Slots are used again, as a shard does; keys are their own hashes, mixed.
    struct Toy {
        policy: ScanResistant,
        slots: Vec<Option<u64>>,
        free: Vec<Slot>,
    }

    fn mixed(key: u64) -> u64 {
        (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
    }

    impl Toy {
        fn new(room: usize) -> Self {
            let free = (0..room as Slot).rev().collect();
            Toy { policy: ScanResistant::new(Arc::default()), slots: vec![None; room], free }
        }

        fn find(&self, key: u64) -> Option<Slot> {
            self.slots.iter().position(|&held| held == Some(key)).map(|slot| slot as Slot)
        }

        /// A use of `key`, which comes in if it is not there.
        fn used(&mut self, key: u64) {
            if let Some(slot) = self.find(key) {
                return self.policy.touch(slot);
            }
            if self.free.is_empty() {
                let slot = self.policy.victim(&mut |_| true).unwrap();
                self.slots[slot as usize].take().unwrap();
                self.free.push(slot);
            }
            let slot = self.free.pop().unwrap();
            self.slots[slot as usize] = Some(key);
            self.policy.now += 1;
            self.policy.insert(slot, mixed(key));
        }
    }

    #[test]
    fn scans_do_not_drive_out_what_is_used_again_and_again() {
        let mut toy = Toy::new(200);
        for round in 0..150 {
            (0..100).for_each(|key| toy.used(key));
            // Each of these is used once.
            (0..60).for_each(|key| toy.used(1000 + round * 60 + key));
        }
        let left = |toy: &Toy, from: u64| {
            (from..from + 100).filter(|&key| toy.find(key).is_some()).count()
        };
        (0..1000).for_each(|key| toy.used(1_000_000 + key));
        assert!(
            left(&toy, 0) >= 90,
            "{} of 100 outlived a scan of five times the room",
            left(&toy, 0)
        );
        // Others are used again and again: these stay, and the former go.
        for _ in 0..150 {
            (2_000_000..2_000_150).for_each(|key| toy.used(key));
        }
        assert!(
            left(&toy, 2_000_000) >= 90 && left(&toy, 0) <= 50,
            "{} of the former",
            left(&toy, 0)
        );
    }

    #[test]
    fn an_evicted_block_returns_as_its_kind_until_its_ghost_is_dropped() {
        let mut toy = Toy::new(64);
        for _ in 0..5 {
            (0..40).for_each(|key| toy.used(key));
            toy.policy.now += 64;
        }
        let uses = |toy: &Toy, key| toy.policy.entry(toy.find(key).unwrap()).uses;
        assert_eq!(uses(&toy, 7), 4);
        let mut next = 1000;
        let scan = |toy: &mut Toy, blocks: u64, next: &mut u64| {
            (*next..*next + blocks).for_each(|key| toy.used(key));
            *next += blocks;
        };
        scan(&mut toy, 70, &mut next);
        assert_eq!(toy.find(7), None);
        toy.used(7);
        assert_eq!(uses(&toy, 7), 5);
        // The model gives it up meanwhile, and takes that back.
        scan(&mut toy, 190, &mut next);
        assert_eq!(toy.find(7), None);
        toy.used(7);
        assert_eq!(uses(&toy, 7), 6);
        for _ in 0..2000 {
            scan(&mut toy, 1, &mut next);
            assert!(toy.policy.ghosts.len() <= 5 * 64 && toy.policy.entries.len() <= 7 * 64);
        }
        toy.used(7);
        assert_eq!(uses(&toy, 7), 0, "its ghost was dropped");
    }

    #[test]
    fn of_blocks_used_at_once_the_deepest_is_evicted_first_in_any_order_of_use() {
        for forward in [true, false] {
            let mut toy = Toy::new(16);
            let depths: Vec<u32> = if forward { (0..8).collect() } else { (0..8).rev().collect() };
            for &depth in &depths {
                toy.policy.now += 1;
                toy.policy.insert_at_depth(depth, mixed(depth.into()), depth);
            }
            toy.policy.now += 100;
            depths.iter().for_each(|&depth| toy.policy.touch(depth));
            let victims: Vec<Slot> =
                std::iter::from_fn(|| toy.policy.victim(&mut |_| true)).collect();
            assert_eq!(victims, (0..8).rev().collect::<Vec<_>>(), "forward: {forward}");
        }
    }

    #[test]
    fn a_use_soon_after_another_makes_it_young_and_no_more() {
        let mut toy = Toy::new(64);
        (0..64).for_each(|key| toy.used(key));
        toy.used(60);
        toy.used(0);
        let known = |key| *toy.policy.entry(toy.find(key).unwrap());
        assert_eq!((known(60).uses, known(60).used), (1, 64));
        assert_eq!((known(0).uses, known(0).used), (1, 64));
        let mut toy = Toy::new(64);
        (0..64).for_each(|key| toy.used(key));
        toy.used(63);
        assert_eq!(toy.policy.entry(toy.find(63).unwrap()).uses, 0);
    }

    #[test]
    fn every_block_goes_once_and_only_if_it_may() {
        for room in [1, 2, 3, 16, 100, 1000] {
            let mut toy = Toy::new(room);
            (0..3 * room as u64).for_each(|key| toy.used(key % (room as u64 + 7)));
            let mut left: HashSet<Slot> = (0..room as Slot).collect();
            let pinned = room as Slot / 2;
            assert_eq!(toy.policy.victim(&mut |_| false), None);
            while let Some(slot) = toy.policy.victim(&mut |slot| slot != pinned) {
                assert!(left.remove(&slot), "slot {slot} went twice");
            }
            assert_eq!(left, HashSet::from([pinned]));
            assert_eq!(toy.policy.victim(&mut |_| true), Some(pinned));
            assert_eq!(toy.policy.victim(&mut |_| true), None);
        }
    }

    #[test]
    fn an_older_block_stays_only_before_one_that_is_worth_clearly_less() {
        let first = |ring, rank, worth| First { ring, rank, worth };
        let of = |old: f32, least: f32| Candidates {
            oldest: first(3, 10, old),
            least: first(0, 90, least),
        };
        assert_eq!(of(1.0, 0.5).choice(None).ring, 0);
        assert_eq!(of(1.0, 0.85).choice(None).ring, 3);
        // LRU's candidate stands in another shard.
        assert_eq!(of(1.0, 0.85).choice(Some(2.0)).ring, 0);
        let both =
            of(1.0, 0.5).and(Candidates { oldest: first(1, 5, 3.0), least: first(2, 7, 0.6) });
        assert_eq!((both.oldest.rank, both.least.worth), (5, 0.5));
    }
}
