//! *Rings*: a few orders of slots. Each slot is in at most one order.
//!
//! Each order is a ring of slots with a head. The first slot follows the head, and the last one
//! precedes it. To move a slot to the end of an order, the thread takes it out and inserts it
//! before the head; both steps are O(1) and exact.
//!
//! Such a move writes the links of five slots. In a look-up that would be expensive, on cache lines
//! that other threads have just changed for other blocks. But the policy learns of uses late, many
//! at a time, from a thread that has the shard exclusively anyway. (The alternative is a heap of
//! time stamps: a use writes one stamp, and the search for a victim repairs outdated entries. It
//! costs less per use, but each eviction costs more than all uses since the last one: the entries
//! lie far apart, and O(log blocks) of them move.)
//!
//! Invariants: (1) `links[r]` is the head of order *r*, `links[s + R]` is the link of slot *s*; (2)
//! `links[links[p].next].prev` is *p* for each index *p*, and `links[links[p].prev].next` is *p*;
//! (3) the ring of a head has exactly the slots of its order, each once; the link of any other slot
//! points to itself.

use super::eviction_policy::Slot;

/// The index of a link: the first `R` are heads, and slot *s* has index *s* + `R`.
type LinkIndex = u32;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: LinkIndex,
    next: LinkIndex,
}

impl Link {
    /// Makes a link that points to itself.
    fn alone(at: usize) -> Link {
        Link { prev: at as LinkIndex, next: at as LinkIndex }
    }
}

/// The maximum number of slots that [`Rings::push_before`] passes.
const MAX_WALK: usize = 64;

/// `R` orders of slots. Takes 8 bytes per slot.
#[derive(Debug)]
pub(super) struct Rings<const R: usize> {
    links: Vec<Link>,
}

impl<const R: usize> Default for Rings<R> {
    fn default() -> Self {
        Rings { links: (0..R).map(Link::alone).collect() }
    }
}

impl<const R: usize> Rings<R> {
    #[inline]
    fn link(&mut self, at: LinkIndex) -> &mut Link {
        &mut self.links[at as usize]
    }

    /// Appends a slot that is in no order to an order.
    #[inline]
    pub(super) fn push(&mut self, ring: usize, slot: Slot) {
        let (head, at) = (ring as LinkIndex, slot + R as LinkIndex);
        let known = self.links.len();
        self.links.extend((known..=at as usize).map(Link::alone));
        let last = self.link(head).prev;
        *self.link(at) = Link { prev: last, next: head };
        self.link(last).next = at;
        self.link(head).prev = at;
    }

    /// Inserts a slot that is in no order into an order, before the slots at its end for which
    /// `is_later` returns true. Passes at most [`MAX_WALK`] of them. Returns the slot before it.
    pub(super) fn push_before(
        &mut self,
        ring: usize,
        slot: Slot,
        is_later: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        let (head, at) = (ring as LinkIndex, slot + R as LinkIndex);
        let known = self.links.len();
        self.links.extend((known..=at as usize).map(Link::alone));
        let mut next = head;
        for _ in 0..MAX_WALK {
            let last = self.link(next).prev;
            if last == head || !is_later(last - R as LinkIndex) {
                break;
            }
            next = last;
        }
        let prev = self.link(next).prev;
        *self.link(at) = Link { prev, next };
        self.link(prev).next = at;
        self.link(next).prev = at;
        prev.checked_sub(R as LinkIndex)
    }

    /// Removes a slot from its order.
    #[inline]
    pub(super) fn take(&mut self, slot: Slot) {
        let at = slot + R as LinkIndex;
        let Link { prev, next } = *self.link(at);
        self.link(prev).next = next;
        self.link(next).prev = prev;
        *self.link(at) = Link::alone(at as usize);
    }

    /// Iterates over the slots of an order, from the first on.
    #[inline]
    pub(super) fn iter(&self, ring: usize) -> RingIter<'_> {
        RingIter { links: &self.links, at: self.links[ring].next, heads: R as LinkIndex }
    }

    /// Returns the first slot of an order.
    #[inline]
    pub(super) fn first(&self, ring: usize) -> Option<Slot> {
        self.links[ring].next.checked_sub(R as LinkIndex)
    }
}

/// Iterates over the slots of an order.
#[derive(Debug)]
pub(in crate::cache) struct RingIter<'a> {
    links: &'a [Link],
    at: LinkIndex,
    heads: LinkIndex,
}

impl Iterator for RingIter<'_> {
    type Item = Slot;

    #[inline]
    fn next(&mut self) -> Option<Slot> {
        // The head follows the last slot.
        let slot = self.at.checked_sub(self.heads)?;
        self.at = self.links[self.at as usize].next;
        Some(slot)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order<const R: usize>(rings: &mut Rings<R>, ring: usize) -> Vec<Slot> {
        std::iter::from_fn(|| {
            let first = rings.first(ring)?;
            rings.take(first);
            Some(first)
        })
        .collect()
    }

    #[test]
    fn a_slot_is_put_before_later_ones_as_far_as_the_walk_goes() {
        let mut rings = Rings::<1>::default();
        (0..100).for_each(|slot| rings.push(0, slot));
        assert_eq!(rings.push_before(0, 200, |slot| slot >= 95), Some(94));
        assert_eq!(rings.push_before(0, 201, |_| false), Some(99));
        assert_eq!(rings.push_before(0, 202, |_| true), Some(37));
        let order = order(&mut rings, 0);
        let place = |slot| order.iter().position(|&other| other == slot);
        assert_eq!((place(202), place(200), place(201)), (Some(38), Some(96), Some(102)));
        assert_eq!(rings.push_before(0, 7, |_| true), None);
    }

    #[test]
    fn an_order_is_iterated_from_its_first_slot() {
        let mut rings = Rings::<2>::default();
        [(0, 5), (1, 7), (0, 2), (0, 9)]
            .into_iter()
            .for_each(|(ring, slot)| rings.push(ring, slot));
        let of = |ring| rings.iter(ring).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![5, 2, 9], vec![7]));
        assert_eq!(Rings::<1>::default().iter(0).next(), None);
    }

    #[test]
    fn each_order_is_kept_by_itself() {
        let mut rings = Rings::<3>::default();
        for (ring, slot) in [(0, 5), (2, 1), (0, 3), (2, 9), (0, 0)] {
            rings.push(ring, slot);
        }
        rings.take(3);
        rings.push(2, 3);
        rings.take(1);
        rings.push(2, 1);
        assert_eq!((rings.first(0), rings.first(1), rings.first(2)), (Some(5), None, Some(9)));
        assert_eq!(order(&mut rings, 2), [9, 3, 1]);
        assert_eq!((order(&mut rings, 0), order(&mut rings, 1)), (vec![5, 0], vec![]));
    }
}
