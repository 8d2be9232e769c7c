//! *LRU*: the blocks of a shard in the order of their last uses.
//!
//! One [ring](super::rings), and for each block the time of its last use, by the cache's
//! [clock](super::clock): so the oldest of one shard can be compared with that of another.

use super::clock::{Gone, Rank, Time};
use super::rings::Rings;
use super::{Policy, Slot};

/// The least recently used goes first. 16 bytes for each slot.
#[derive(Debug, Default)]
pub(super) struct Lru {
    ring: Rings<1>,
    /// By slot.
    used: Vec<Time>,
    len: usize,
    gone: Gone,
    /// The time of what it is told.
    pub(super) now: Time,
}

impl Lru {
    /// The rank of the next victim.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Rank> {
        Some(self.gone.rank(self.used[self.ring.first(0)? as usize]))
    }
}

impl Policy for Lru {
    fn insert(&mut self, slot: Slot, _hash: u64) {
        self.ring.push(0, slot);
        if self.used.len() <= slot as usize {
            self.used.resize(slot as usize + 1, 0);
        }
        self.used[slot as usize] = self.now;
        self.len += 1;
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        self.ring.take(slot);
        self.ring.push(0, slot);
        self.used[slot as usize] = self.now;
    }

    fn remove(&mut self, slot: Slot) {
        self.ring.take(slot);
        self.len -= 1;
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // What is pinned counts as used, so that the next search does not meet it again; after all
        // have been met the search ends.
        for _ in 0..self.len {
            let slot = self.ring.first(0)?;
            if may_go(slot) {
                self.remove(slot);
                self.gone.more(self.used[slot as usize]);
                return Some(slot);
            }
            self.touch(slot);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::time_of;
    use super::*;

    fn order(lru: &mut Lru) -> Vec<Slot> {
        std::iter::from_fn(|| lru.victim(&mut |_| true)).collect()
    }

    fn of(slots: impl IntoIterator<Item = Slot>) -> Lru {
        let mut lru = Lru::default();
        slots.into_iter().for_each(|slot| lru.insert(slot, 0));
        lru
    }

    #[test]
    fn they_go_by_last_use() {
        let mut lru = of([2, 0, 1, 3]);
        lru.touch(2);
        lru.touch(2);
        lru.remove(1);
        assert_eq!(order(&mut lru), [0, 3, 2]);
        assert!(order(&mut lru).is_empty());
        lru.insert(1, 0);
        assert_eq!(order(&mut lru), [1]);
    }

    #[test]
    fn a_pinned_one_counts_as_used_when_it_is_met() {
        let mut lru = of(0..5);
        assert_eq!(lru.victim(&mut |slot| slot > 1), Some(2));
        assert_eq!(lru.victim(&mut |_| false), None);
        assert_eq!(order(&mut lru), [3, 4, 0, 1]);
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
        assert_eq!((order(&mut lru), lru.oldest()), (vec![1, 2, 0], None));
    }
}
