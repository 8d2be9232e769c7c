//! The history for an owner that keeps the orders itself.

use super::*;

/// The blocks of an owner by kind, each order by last use.
#[derive(Default)]
struct Owner {
    history: History,
    orders: [Vec<Slot>; KINDS],
}

impl Owner {
    /// Sorts a block behind all others of its kind.
    fn sort(&mut self, slot: Slot) {
        self.unsort(slot);
        self.orders[self.history.kind(slot)].push(slot);
    }

    fn unsort(&mut self, slot: Slot) {
        self.orders.iter_mut().for_each(|order| order.retain(|&other| other != slot));
    }

    fn insert(&mut self, slot: Slot, hash: u64) {
        self.history.insert(slot, hash);
        self.sort(slot);
    }

    fn touch(&mut self, slot: Slot) {
        self.history.touch(slot);
        self.sort(slot);
    }

    fn firsts(&self) -> [Option<Slot>; KINDS] {
        self.orders.each_ref().map(|order| order.first().copied())
    }

    fn evict(&mut self, slot: Slot) {
        self.history.evict(slot);
        self.unsort(slot);
    }

    /// Returns the uses and the time of the last use of a block.
    fn known(&self, slot: Slot) -> (u8, Time) {
        let KnownBlock { uses, used, .. } = *self.history.entry(slot);
        (uses, used)
    }

    /// Returns the blocks of the history, and those of the whole cache.
    fn len(&self) -> (usize, u64) {
        (self.history.len, self.history.held())
    }
}

fn hash(key: u64) -> u64 {
    (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

#[test]
fn insertions_are_the_clock_and_an_evicted_block_returns_with_its_uses() {
    let mut owner = Owner::default();
    for slot in 0..4 {
        owner.insert(slot, hash(slot.into()));
        assert_eq!((owner.known(slot), owner.history.kind(slot)), ((0, 1 + Time::from(slot)), 0));
    }
    assert_eq!(owner.len(), (4, 4));
    owner.touch(1);
    assert_eq!((owner.known(1), owner.orders[1].clone()), ((1, 4), vec![1]));
    // The oldest of all is the next victim, of whatever kind.
    assert_eq!(owner.history.victim(owner.firsts()), Some(0));
    owner.evict(0);
    assert_eq!((owner.history.victim(owner.firsts()), owner.len()), (Some(2), (3, 3)));
    owner.evict(1);
    owner.history.remove(2);
    owner.unsort(2);
    assert_eq!((owner.history.victim(owner.firsts()), owner.len()), (Some(3), (1, 1)));
    assert_eq!(owner.history.victim([None; KINDS]), None);
    for (slot, (uses, used)) in [(1, (2, 5)), (0, (1, 6)), (2, (0, 7))] {
        owner.insert(slot, hash(slot.into()));
        assert_eq!(owner.known(slot), (uses, used), "slot {slot}: one that was removed is new");
    }
    assert_eq!(owner.len(), (4, 4));
}

#[test]
fn uses_that_only_one_of_the_two_policies_serves_move_the_lead() {
    let mut owner = Owner::default();
    let lead = |owner: &Owner| owner.history.reuse.comparison.lead();
    (0..4).for_each(|slot| owner.insert(slot, hash(slot.into())));
    // LRU would have evicted the block at 0.
    owner.evict(3);
    owner.insert(3, hash(100));
    assert_eq!(lead(&owner), 0);
    owner.touch(1);
    assert_eq!(lead(&owner), 0, "both have it");
    owner.touch(0);
    assert_eq!(lead(&owner), 1, "LRU has evicted it");
    owner.touch(0);
    assert_eq!(lead(&owner), 1, "LRU has it again");
    // LRU would have evicted another one than this.
    owner.evict(0);
    owner.insert(0, hash(0));
    assert_eq!(lead(&owner), 0, "the use is a miss, and would be none of LRU");
    assert!(owner.history.reuse.comparison.is_trusted());
    owner.evict(0);
    owner.insert(0, hash(0));
    assert_eq!(lead(&owner), -1);
    assert!(!owner.history.reuse.comparison.is_trusted());
    // A block that left otherwise, and one that LRU had evicted, too, tell nothing.
    owner.history.remove(0);
    owner.insert(0, hash(0));
    owner.evict(2);
    (200..208).for_each(|key| {
        owner.insert(2, hash(key));
        owner.evict(2);
    });
    owner.insert(2, hash(2));
    assert_eq!(lead(&owner), -1);
}

#[test]
fn events_are_counted_several_at_once() {
    let mut owner = Owner::default();
    owner.insert(0, hash(0));
    for uses in 1..=3 * COLLECTED {
        owner.history.now += 10;
        owner.touch(0);
        assert_eq!(owner.history.events.len(), uses % COLLECTED);
    }
    // Two uses close together are one.
    (0..COLLECTED).for_each(|_| owner.touch(0));
    assert_eq!((owner.history.events.len(), owner.known(0)), (0, (48, 481)));
}

#[test]
fn the_shadow_follows_the_uses_of_blocks_that_are_held() {
    let mut owner = Owner::default();
    (0..3).for_each(|slot| owner.insert(slot, hash(slot.into())));
    for slot in [0, 1] {
        owner.history.now += 5;
        owner.touch(slot);
    }
    owner.evict(2);
    owner.insert(2, hash(100));
    owner.evict(0);
    // LRU evicted this one, too, for the new block.
    owner.insert(0, hash(2));
    assert_eq!(owner.history.reuse.comparison.lead(), 0);
}
