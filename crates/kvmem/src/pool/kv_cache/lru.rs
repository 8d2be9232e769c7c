//! *LRU*: the blocks of a shard in the order of their last uses.
//!
//! A ring of slots with a head: behind the head the least recently used, before it the one used last. A use takes its slot out and
//! puts it in before the head; the victim is what follows the head: both O(1), and exact.
//!
//! Such a use writes to the links of five slots. That would be dear in a look-up, on lines that other threads have just changed for other blocks; but
//! uses are told late, many at a time, by who has the shard to himself anyway. (A heap of stamps, of which a use writes one and the victim's search sets
//! right what has become old, costs less at a use, but more at each eviction than all uses since the last one: its entries
//! lie far apart, and O(log blocks) of them are moved.)
//!
//! Invariants: (1) `links[0]` is the head, `links[s + 1]` is of slot *s*; (2) `links[links[p].next].prev` is *p* for each place *p*, and the other way
//! round; (3) from the head on there are just the slots with a block, each once; the place of any other is linked to itself.

use super::{Policy, Slot};

/// Number of a link: 0 is the head, any other the slot before it.
type Place = u32;

const HEAD: Place = 0;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: Place,
    next: Place,
}

impl Link {
    /// Linked to itself.
    fn alone(at: usize) -> Link {
        Link { prev: at as Place, next: at as Place }
    }
}

/// The least recently used goes first. 8 bytes for each slot.
#[derive(Debug)]
pub(super) struct Lru {
    links: Vec<Link>,
    len: usize,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { links: vec![Link::alone(0)], len: 0 }
    }
}

impl Lru {
    #[inline]
    fn link(&mut self, at: Place) -> &mut Link {
        &mut self.links[at as usize]
    }

    /// Puts in as the one used last what is linked to itself.
    #[inline]
    fn push(&mut self, at: Place) {
        let last = self.link(HEAD).prev;
        *self.link(at) = Link { prev: last, next: HEAD };
        self.link(last).next = at;
        self.link(HEAD).prev = at;
    }

    /// Takes out; it is linked to nothing then.
    #[inline]
    fn unlink(&mut self, at: Place) {
        let Link { prev, next } = *self.link(at);
        self.link(prev).next = next;
        self.link(next).prev = prev;
    }

    /// As `unlink`, for what does not come in again at once.
    fn take(&mut self, at: Place) {
        self.unlink(at);
        *self.link(at) = Link::alone(at as usize);
        self.len -= 1;
    }
}

impl Policy for Lru {
    fn insert(&mut self, slot: Slot, _hash: u64) {
        let at = slot + 1;
        let known = self.links.len();
        self.links.extend((known..=at as usize).map(Link::alone));
        self.push(at);
        self.len += 1;
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        let at = slot + 1;
        self.unlink(at);
        self.push(at);
    }

    fn remove(&mut self, slot: Slot) {
        self.take(slot + 1);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // What is pinned counts as used, so that the next search does not meet it again; after all have been met the search ends.
        for _ in 0..self.len {
            let at = self.link(HEAD).next;
            let slot = at - 1;
            if may_go(slot) {
                self.take(at);
                return Some(slot);
            }
            self.touch(slot);
        }
        None
    }
}

#[cfg(test)]
mod tests {
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
}
