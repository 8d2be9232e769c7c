//! *Scan-resistant*: the block that is worth least goes next, by what was [learned](super::reuse).
//!
//! The blocks of a shard stand in one ring for each kind, in the order of their last uses. Within a
//! kind the oldest is worth least; so a victim is the first of one of the rings. Which one, two
//! candidates decide: the one that LRU would take, which is the oldest of all, and the one that is
//! worth least. Counts are never exact, and worths less so. So LRU's candidate goes unless the
//! other is worth clearly less, which [`CLEARLY`] says.
//!
//! A use soon after another is no news: a server looks the same block up twice for one request, and
//! that says nothing of the next request. So a use at an age of less than 1 / [`SOON`] of what is
//! held makes a block young, but of no higher kind.
//!
//! Of what was evicted, as many hashes as there are blocks are remembered, with their uses and
//! times (*ghosts*): so what is missed shortly after its eviction counts as a use, and comes back
//! as the kind it was.
//!
//! Invariants: (1) a slot with a block stands in the ring of its kind, and no other slot in any;
//! (2) a ring is in the order of `used`; (3) a ghost in the queue whose time is not that of its
//! hash in the table has come back.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;

use super::clock::{Gone, NONE, ORDERS, Rank, Time, time_of};
use super::reuse::{Event, KINDS, Reuse, kind};
use super::rings::Rings;
use super::{Policy, Slot};

/// A block goes before an older one only if it is worth less than this part of that.
const CLEARLY: f32 = 0.6;
/// See the head of the file.
const SOON: u64 = 32;
/// Events that a shard collects before it has them counted.
const COLLECTED: usize = 16;

/// What is known of the block at a slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: u64,
    /// When it was last used.
    used: Time,
    uses: u8,
}

/// What is known of one that was evicted.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    hash: u64,
    used: Time,
    uses: u8,
}

/// The policy of one shard.
#[derive(Debug)]
pub(super) struct ScanResistant {
    rings: Rings<KINDS>,
    /// By slot.
    known: Vec<Known>,
    len: usize,
    /// By hash.
    ghosts: HashTable<Ghost>,
    /// In the order in which they were evicted: hash and last use.
    queue: VecDeque<(u64, Time)>,
    events: Vec<Event>,
    /// By ring.
    gone: [Gone; KINDS],
    reuse: Arc<Reuse>,
    shards: u64,
    /// The time of what it is told.
    pub(super) now: Time,
    /// What LRU's candidate of several shards is worth; `None`: that of this shard counts.
    pub(super) other: Option<f32>,
}

impl ScanResistant {
    /// For one of so many shards, which learn together.
    pub(super) fn new(reuse: Arc<Reuse>, shards: usize) -> Self {
        ScanResistant {
            rings: Rings::default(),
            known: Vec::new(),
            len: 0,
            ghosts: HashTable::new(),
            queue: VecDeque::new(),
            events: Vec::with_capacity(COLLECTED),
            gone: [Gone::default(); KINDS],
            reuse,
            shards: shards as u64,
            now: 0,
            other: None,
        }
    }

    /// Blocks in the whole cache, about.
    fn held(&self) -> u64 {
        self.len as u64 * self.shards
    }

    fn became(&mut self, event: Event) {
        self.events.push(event);
        if self.events.len() >= COLLECTED {
            self.reuse.count(&mut self.events);
        }
    }

    /// The rank of the first block of each ring.
    pub(super) fn oldest(&self) -> [Rank; ORDERS] {
        let rank = |ring: usize, slot: Slot| self.gone[ring].rank(self.known[slot as usize].used);
        std::array::from_fn(|ring| self.rings.first(ring).map_or(NONE, |slot| rank(ring, slot)))
    }

    /// The next choice, pinned or not.
    fn choose(&self) -> Option<Slot> {
        let candidates = Candidates::of(&self.reuse, self.now, self.oldest())?;
        self.rings.first(candidates.choice(self.other).ring)
    }

    /// A block has been evicted: as many ghosts as blocks are remembered.
    fn remember(&mut self, Known { hash, used, uses }: Known) {
        self.forget(hash);
        self.ghosts.insert_unique(hash, Ghost { hash, used, uses }, |ghost| ghost.hash);
        self.queue.push_back((hash, used));
        while self.queue.len() > self.len.max(1) {
            let Some((hash, used)) = self.queue.pop_front() else { break };
            let same = |ghost: &Ghost| ghost.hash == hash && ghost.used == used;
            if let Ok(entry) = self.ghosts.find_entry(hash, same) {
                let ghost = entry.remove().0;
                self.became(Event::forgotten(ghost.uses, self.now.saturating_sub(ghost.used)));
            }
        }
    }

    /// The ghost of a hash, which is one no more.
    fn forget(&mut self, hash: u64) -> Option<Ghost> {
        let entry = self.ghosts.find_entry(hash, |ghost| ghost.hash == hash).ok()?;
        Some(entry.remove().0)
    }
}

impl Policy for ScanResistant {
    fn insert(&mut self, slot: Slot, hash: u64) {
        let uses = match self.forget(hash) {
            Some(ghost) => {
                self.became(Event::used(ghost.uses, self.now.saturating_sub(ghost.used)));
                ghost.uses.saturating_add(1)
            }
            None => 0,
        };
        let known = Known { hash, used: self.now, uses };
        if self.known.len() <= slot as usize {
            self.known.resize(slot as usize + 1, known);
        }
        self.known[slot as usize] = known;
        self.rings.push(kind(uses), slot);
        self.len += 1;
    }

    fn touch(&mut self, slot: Slot) {
        let Known { used, uses, .. } = self.known[slot as usize];
        let age = self.now.saturating_sub(used);
        let mut now_uses = uses;
        if age * SOON >= self.held() {
            self.became(Event::used(uses, age));
            now_uses = uses.saturating_add(1);
        }
        let known = &mut self.known[slot as usize];
        (known.used, known.uses) = (self.now, now_uses);
        self.rings.take(slot);
        self.rings.push(kind(now_uses), slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.rings.take(slot);
        self.len -= 1;
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        if self.reuse.is_due(self.now, self.held()) {
            self.reuse.learn();
        }
        // Set aside until the search has ended, so that none is met twice.
        let mut pinned = Vec::new();
        let found = loop {
            let Some(slot) = self.choose() else { break None };
            let Known { used, uses, .. } = self.known[slot as usize];
            self.remove(slot);
            if may_go(slot) {
                self.gone[kind(uses)].more(used);
                self.remember(self.known[slot as usize]);
                break Some(slot);
            }
            pinned.push(slot);
        };
        for slot in pinned {
            // In use is used, so that the next search does not meet it again.
            let known = &mut self.known[slot as usize];
            known.used = self.now;
            self.rings.push(kind(known.uses), slot);
            self.len += 1;
        }
        found
    }
}

/// The first block of a ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct First {
    ring: usize,
    rank: Rank,
    pub(super) worth: f32,
}

impl First {
    /// Whether it is worth less; of what is worth the same, the lower kind is, and then what was
    /// used earlier.
    fn is_less(&self, other: &First) -> bool {
        let order = self.worth.total_cmp(&other.worth);
        order.then(self.ring.cmp(&other.ring)).then(self.rank.cmp(&other.rank)).is_lt()
    }
}

/// Who could go: see the head of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates {
    /// LRU's.
    pub(super) oldest: First,
    /// The one that is worth least.
    pub(super) least: First,
}

impl Candidates {
    /// Of the rings whose first blocks have these ranks; `None` if there are no blocks.
    pub(super) fn of(reuse: &Reuse, now: Time, ranks: [Rank; ORDERS]) -> Option<Self> {
        let firsts = ranks.into_iter().enumerate().filter(|&(_, rank)| rank != NONE);
        let worth = |ring, rank| reuse.worth(ring, now.saturating_sub(time_of(rank)));
        let mut firsts = firsts.map(|(ring, rank)| First { ring, rank, worth: worth(ring, rank) });
        let first = firsts.next()?;
        Some(firsts.fold(Candidates { oldest: first, least: first }, |so_far, first| {
            so_far.and(Candidates { oldest: first, least: first })
        }))
    }

    /// Those of both; of equals the ones of `self`.
    pub(super) fn and(self, other: Candidates) -> Candidates {
        Candidates {
            oldest: if other.oldest.rank < self.oldest.rank { other.oldest } else { self.oldest },
            least: if other.least.is_less(&self.least) { other.least } else { self.least },
        }
    }

    /// The one that goes. `other` is what LRU's candidate is worth if that stands elsewhere.
    pub(super) fn choice(&self, other: Option<f32>) -> First {
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
            Toy { policy: ScanResistant::new(Arc::default(), 1), slots: vec![None; room], free }
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
    fn what_was_evicted_comes_back_as_what_it_was_and_ghosts_are_as_many_as_blocks() {
        let mut toy = Toy::new(64);
        for _ in 0..5 {
            (0..40).for_each(|key| toy.used(key));
            toy.policy.now += 64;
        }
        let uses = |toy: &Toy, key| toy.policy.known[toy.find(key).unwrap() as usize].uses;
        assert_eq!(uses(&toy, 7), 4);
        for key in 1000..1070 {
            toy.used(key);
        }
        assert_eq!(toy.find(7), None);
        toy.used(7);
        assert_eq!(uses(&toy, 7), 5);
        for key in 2000..4000 {
            toy.used(key);
            assert!(toy.policy.ghosts.len() <= 64 && toy.policy.queue.len() <= 64);
        }
        toy.used(7);
        assert_eq!(uses(&toy, 7), 0, "it was forgotten");
    }

    #[test]
    fn a_use_soon_after_another_makes_it_young_and_no_more() {
        let mut toy = Toy::new(64);
        (0..64).for_each(|key| toy.used(key));
        toy.used(60);
        toy.used(0);
        let known = |key| toy.policy.known[toy.find(key).unwrap() as usize];
        assert_eq!((known(60).uses, known(60).used), (1, 64));
        assert_eq!((known(0).uses, known(0).used), (1, 64));
        let mut toy = Toy::new(64);
        (0..64).for_each(|key| toy.used(key));
        toy.used(63);
        assert_eq!(toy.policy.known[toy.find(63).unwrap() as usize].uses, 0);
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
        assert_eq!(of(1.0, 0.7).choice(None).ring, 3);
        // LRU's candidate stands in another shard.
        assert_eq!(of(1.0, 0.7).choice(Some(2.0)).ring, 0);
        let both =
            of(1.0, 0.5).and(Candidates { oldest: first(1, 5, 3.0), least: first(2, 7, 0.6) });
        assert_eq!((both.oldest.rank, both.least.worth), (5, 0.5));
    }
}
