//! *LRU*: a list of slots by last use.
//!
//! ```text
//!   links[0] ⇄ oldest ⇄ … ⇄ newest ⇄ links[0]        the block at slot s has links[s + 1]
//! ```
//!
//! A ring through a table of eight bytes a block, apart from blocks and keys. A use changes five entries of it; for
//! 100,000 blocks all of them together are 800 KB, so these changes mostly stay within the second-level cache.

use super::{Policy, Slot};

/// The head of the ring.
const HEAD: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// The least recently used goes first.
#[derive(Debug)]
pub(super) struct Lru {
    links: Vec<Link>,
    len: usize,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { links: vec![Link { older: HEAD, newer: HEAD }], len: 0 }
    }
}

impl Lru {
    #[inline]
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.links[node as usize]
    }

    #[inline]
    fn unlink(&mut self, node: u32) {
        let Link { older, newer } = *self.link(node);
        self.link(older).newer = newer;
        self.link(newer).older = older;
    }

    /// Puts it at the end of the newest.
    #[inline]
    fn append(&mut self, node: u32) {
        let newest = self.link(HEAD).older;
        *self.link(node) = Link { older: newest, newer: HEAD };
        self.link(newest).newer = node;
        self.link(HEAD).older = node;
    }
}

impl Policy for Lru {
    fn insert(&mut self, slot: Slot, _hash: u64) {
        let node = slot + 1;
        if node as usize >= self.links.len() {
            self.links.resize(node as usize + 1, Link { older: node, newer: node });
        }
        self.append(node);
        self.len += 1;
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        let node = slot + 1;
        if self.link(HEAD).older != node {
            self.unlink(node);
            self.append(node);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.unlink(slot + 1);
        self.len -= 1;
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // What is pinned goes to the newest, so that the next search does not meet it again; after a whole turn all are
        // where they were.
        for _ in 0..self.len {
            let node = self.link(HEAD).newer;
            let slot = node - 1;
            if may_go(slot) {
                self.remove(slot);
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
