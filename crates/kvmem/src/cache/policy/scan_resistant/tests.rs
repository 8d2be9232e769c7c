use std::collections::HashSet;

use super::super::clock::{NONE, time_of};
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
        self.policy.history.now += 1;
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
    let left =
        |toy: &Toy, from: u64| (from..from + 100).filter(|&key| toy.find(key).is_some()).count();
    (0..1000).for_each(|key| toy.used(1_000_000 + key));
    assert!(left(&toy, 0) >= 90, "{} of 100 outlived a scan of five times the room", left(&toy, 0));
    // Others are used again and again: these stay, and the former go.
    for _ in 0..150 {
        (2_000_000..2_000_150).for_each(|key| toy.used(key));
    }
    assert!(left(&toy, 2_000_000) >= 90 && left(&toy, 0) <= 50, "{} of the former", left(&toy, 0));
}

#[test]
fn an_evicted_block_returns_as_its_kind_until_its_ghost_is_dropped() {
    let mut toy = Toy::new(64);
    for _ in 0..5 {
        (0..40).for_each(|key| toy.used(key));
        toy.policy.history.now += 64;
    }
    let uses = |toy: &Toy, key| toy.policy.history.entry(toy.find(key).unwrap()).uses;
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
    // The model abandons it meanwhile, and reverts that.
    scan(&mut toy, 190, &mut next);
    assert_eq!(toy.find(7), None);
    toy.used(7);
    assert_eq!(uses(&toy, 7), 6);
    for _ in 0..2000 {
        scan(&mut toy, 1, &mut next);
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
            toy.policy.history.now += 1;
            toy.policy.insert_at_depth(depth, mixed(depth.into()), depth);
        }
        toy.policy.history.now += 100;
        depths.iter().for_each(|&depth| toy.policy.touch(depth));
        let victims: Vec<Slot> = std::iter::from_fn(|| toy.policy.victim(&mut |_| true)).collect();
        assert_eq!(victims, (0..8).rev().collect::<Vec<_>>(), "forward: {forward}");
    }
}

#[test]
fn a_use_soon_after_another_makes_it_young_and_no_more() {
    let mut toy = Toy::new(64);
    (0..64).for_each(|key| toy.used(key));
    toy.used(60);
    toy.used(0);
    let known = |key| *toy.policy.history.entry(toy.find(key).unwrap());
    assert_eq!((known(60).uses, known(60).used), (1, 64));
    assert_eq!((known(0).uses, known(0).used), (1, 64));
    let mut toy = Toy::new(64);
    (0..64).for_each(|key| toy.used(key));
    toy.used(63);
    assert_eq!(toy.policy.history.entry(toy.find(63).unwrap()).uses, 0);
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
fn removed_blocks_are_no_victims_and_blocks_of_one_time_go_in_the_order_of_their_use() {
    let mut toy = Toy::new(8);
    toy.policy.set_now(50);
    (0..6).for_each(|slot| toy.policy.insert(slot, mixed(slot.into())));
    toy.policy.remove(4);
    assert_eq!(toy.policy.upcoming().collect::<Vec<_>>(), [0, 1, 2, 3, 5]);
    toy.policy.set_now(60);
    [3, 0].iter().for_each(|&slot| toy.policy.touch(slot));
    let times = |toy: &Toy| toy.policy.oldest().map(|rank| (rank != NONE).then(|| time_of(rank)));
    assert_eq!(times(&toy), [Some(50), Some(60), None, None, None]);
    // The caller may choose the order of the next victim, and the same one again.
    toy.policy.chosen = Some(1);
    assert_eq!(toy.policy.victim(&mut |_| true), Some(3));
    toy.policy.repeat_choice();
    assert_eq!(toy.policy.victim(&mut |_| true), Some(0));
    toy.policy.repeat_choice();
    assert_eq!(toy.policy.chosen, None, "that order has no block left");
    let left: Vec<Slot> = std::iter::from_fn(|| toy.policy.victim(&mut |_| true)).collect();
    assert_eq!((left, times(&toy)), (vec![1, 2, 5], [None; ORDERS]));
}
