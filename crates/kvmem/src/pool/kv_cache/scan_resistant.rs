//! *Scan-resistant*: the policy of the `quick_cache` crate, which has a map of its own.
//!
//! `quick_cache` is a whole cache: it holds entries up to a capacity and evicts by itself when another is put in. As a policy it must
//! instead hold what it is told and say what goes when it is asked. Four things make it one:
//!
//! 1. *What it holds* are names: hash and slot, each of weight 1. Names differ by their slots, so two keys with one hash are two;
//!    what it remembers of those gone (*ghosts*) are hashes alone, so a key is known again whatever slot it gets.
//! 2. *Asking* is done with a balloon: a name that weighs so much that just one other has to go, and that is taken out again
//!    at once. It is pinned, so it is not refused for its weight and does not go itself.
//! 3. *More may go* than one, as a name that is promoted may push others out. Those are the next victims; one that is
//!    used meanwhile is put in again.
//! 4. *Capacity* is the number of blocks in the shard, which nobody knows beforehand. The cache begins with room for any number
//!    and is made anew, with what it holds in the order in which that would go, when the first victim is asked for, and whenever the
//!    number has changed by a sixteenth. Its own way to change the capacity rounds, and many small changes would wear its
//!    proportions out.
//!
//! A pinned block is found out when it has been chosen. It is put in again as used, after the search.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash, Hasher};

use quick_cache::unsync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use super::{Policy, Slot};

/// Of all names so many may have proved themselves; the others are on trial.
const HOT: f64 = 0.875;
/// So many of those gone are remembered, of the names held.
const GHOSTS: f64 = 0.5;
/// Before the first victim.
const UNBOUNDED: u64 = 1 << 40;
/// The balloon's slot, which no block has.
const BALLOON: Slot = Slot::MAX;

/// A block, as the crate's cache has it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    hash: u64,
    slot: Slot,
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Hashes come as hashes.
#[derive(Clone, Copy, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl BuildHasher for AsItIs {
    type Hasher = AsItIs;

    fn build_hasher(&self) -> AsItIs {
        AsItIs(0)
    }
}

/// The value is the weight.
#[derive(Clone, Copy)]
struct ByValue;

impl Weighter<Name, u64> for ByValue {
    fn weight(&self, _: &Name, weight: &u64) -> u64 {
        *weight
    }
}

/// What went, in order.
#[derive(Default)]
struct Gone {
    /// Those that had not proved themselves.
    cold: Vec<Slot>,
    /// Those that had.
    hot: Vec<Slot>,
}

struct Hooks;

impl Lifecycle<Name, u64> for Hooks {
    type RequestState = Gone;

    fn is_pinned(&self, name: &Name, _: &u64) -> bool {
        name.slot == BALLOON
    }

    fn on_evict_cold(&self, gone: &mut Gone, name: Name, _: u64) {
        gone.cold.push(name.slot);
    }

    fn on_evict_hot(&self, gone: &mut Gone, name: Name, _: u64) {
        gone.hot.push(name.slot);
    }
}

type Names = Cache<Name, u64, ByValue, AsItIs, Hooks>;

/// The crate's cache as a policy; see the head of the file.
pub(super) struct ScanResistant {
    names: Names,
    capacity: u64,
    /// By slot.
    hashes: Vec<u64>,
    /// Chosen already, and held in none of the crate's lists.
    chosen: VecDeque<Slot>,
}

fn names(capacity: u64) -> Names {
    // Capacities are counts of slots, so they fit; and the shares lie within 0 and 1, so nothing is refused.
    let options = OptionsBuilder::new()
        .estimated_items_capacity(capacity as usize)
        .weight_capacity(capacity)
        .hot_allocation(HOT)
        .ghost_allocation(GHOSTS)
        .build()
        .expect("both capacities are given");
    Cache::with_options(options, ByValue, AsItIs(0), Hooks)
}

impl ScanResistant {
    pub(super) fn new() -> Self {
        ScanResistant {
            names: names(UNBOUNDED),
            capacity: UNBOUNDED,
            hashes: Vec::new(),
            chosen: VecDeque::new(),
        }
    }

    fn name(&self, slot: Slot) -> Name {
        Name { hash: self.hashes[slot as usize], slot }
    }

    /// Puts a name in, with room for it.
    fn admit(&mut self, slot: Slot) {
        if self.names.weight() >= self.capacity {
            self.renew(self.capacity + self.capacity / 16 + 1);
        }
        self.names.insert(self.name(slot), 1);
    }

    /// Blows the balloon up until `count` names, or a few more, have gone.
    fn squeeze(&mut self, count: u64) -> Gone {
        let mut gone = Gone::default();
        let balloon = Name { hash: 0, slot: BALLOON };
        let weight = self.capacity - self.names.weight() + count;
        self.names.insert_with_lifecycle(balloon, weight, &mut gone);
        self.names.remove(&balloon);
        gone
    }

    /// The cache made anew for so many names. Those that have proved themselves come first, as then they find room there.
    fn renew(&mut self, capacity: u64) {
        let gone = self.squeeze(self.names.weight());
        self.capacity = capacity;
        self.names = names(capacity);
        for slot in gone.hot.into_iter().chain(gone.cold) {
            self.names.insert(self.name(slot), 1);
        }
    }

    /// The next choice, pinned or not.
    fn choose(&mut self) -> Option<Slot> {
        if self.chosen.is_empty() && self.names.weight() > 0 {
            let gone = self.squeeze(1);
            self.chosen.extend(gone.cold.into_iter().chain(gone.hot));
        }
        self.chosen.pop_front()
    }
}

impl Policy for ScanResistant {
    fn insert(&mut self, slot: Slot, hash: u64) {
        if slot as usize >= self.hashes.len() {
            self.hashes.resize(slot as usize + 1, 0);
        }
        self.hashes[slot as usize] = hash;
        self.admit(slot);
    }

    fn touch(&mut self, slot: Slot) {
        if self.names.get(&self.name(slot)).is_some() {
            return;
        }
        if let Some(at) = self.chosen.iter().position(|&chosen| chosen == slot) {
            self.chosen.remove(at);
            self.admit(slot);
        }
    }

    fn remove(&mut self, slot: Slot) {
        if self.names.remove(&self.name(slot)).is_none() {
            self.chosen.retain(|&chosen| chosen != slot);
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let held = self.names.weight();
        if held < self.capacity - self.capacity / 16 && held > 0 {
            self.renew(held);
        }
        let mut pinned = Vec::new();
        let found = loop {
            match self.choose() {
                Some(slot) if may_go(slot) => break Some(slot),
                Some(slot) => pinned.push(slot),
                None => break None,
            }
        };
        for slot in pinned {
            self.admit(slot);
            // In use is used.
            let _ = self.names.get(&self.name(slot));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Slots are used again, as a shard does; keys are their own hashes, mixed.
    struct Toy {
        policy: ScanResistant,
        slots: Vec<Option<u64>>,
        free: Vec<Slot>,
        room: usize,
    }

    fn mixed(key: u64) -> u64 {
        (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
    }

    impl Toy {
        fn new(room: usize) -> Self {
            let free = (0..room as Slot).rev().collect();
            Toy { policy: ScanResistant::new(), slots: vec![None; room], free, room }
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
            self.policy.insert(slot, mixed(key));
        }
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used_again() {
        let mut toy = Toy::new(200);
        for round in 0..30 {
            (0..100).for_each(|key| toy.used(key));
            // Each of these is used once.
            (0..60).for_each(|key| toy.used(1000 + round * 60 + key));
        }
        (0..2000).for_each(|key| toy.used(1_000_000 + key));
        let left = (0..100).filter(|&key| toy.find(key).is_some()).count();
        assert!(left >= 90, "{left} of 100 outlived a scan of ten times the room");
    }

    #[test]
    fn every_block_goes_once_and_only_if_it_may() {
        for room in [1, 2, 3, 16, 100, 1000] {
            let mut toy = Toy::new(room);
            (0..3 * room as u64).for_each(|key| toy.used(key % (room as u64 + 7)));
            let mut left: HashSet<Slot> = (0..toy.room as Slot).collect();
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
    fn what_is_removed_is_forgotten_and_what_is_chosen_can_be_saved() {
        let mut toy = Toy::new(64);
        (0..200).for_each(|key| toy.used(key));
        for slot in 0..32 {
            toy.policy.remove(slot);
        }
        let gone = toy.policy.squeeze(2);
        toy.policy.chosen.extend(gone.cold.into_iter().chain(gone.hot));
        let saved = *toy.policy.chosen.front().unwrap();
        toy.policy.touch(saved);
        assert!(!toy.policy.chosen.contains(&saved));
        let gone: Vec<Slot> = std::iter::from_fn(|| toy.policy.victim(&mut |_| true)).collect();
        assert_eq!(gone.len(), 32);
        assert_eq!(gone.iter().copied().collect::<HashSet<_>>(), (32..64).collect());
    }
}
