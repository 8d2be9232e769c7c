//! *Rings*: slots in a few orders, each slot in one of them at most.
//!
//! Each order is a ring of slots with a head: behind the head the first, before it the last. A slot
//! moves to the end of an order by taking it out and putting it in before the head: both O(1), and
//! exact.
//!
//! Such a move writes to the links of five slots. That would be dear in a look-up, on lines that
//! other threads have just changed for other blocks; but uses are told late, many at a time, by a
//! thread that has the shard to itself anyway. (A heap of stamps, of which a use writes one and the
//! victim's search sets right what has become old, costs less at a use, but more at each eviction
//! than all uses since the last one: its entries lie far apart, and O(log blocks) of them are
//! moved.)
//!
//! Invariants: (1) `links[r]` is the head of order *r*, `links[s + R]` is of slot *s*; (2)
//! `links[links[p].next].prev` is *p* for each place *p*, and the other way round; (3) from a head
//! on there are just the slots in that order, each once; the place of any other is linked to
//! itself.

use super::Slot;

/// Number of a link: the first ones are heads, any other is `R` after its slot.
type LinkIndex = u32;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: LinkIndex,
    next: LinkIndex,
}

impl Link {
    /// Linked to itself.
    fn alone(at: usize) -> Link {
        Link { prev: at as LinkIndex, next: at as LinkIndex }
    }
}

/// Most slots that [`Rings::push_before`] passes.
const MAX_WALK: usize = 64;

/// `R` orders. 8 bytes for each slot.
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

    /// Puts a slot that is in no order at the end of one.
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

    /// Puts a slot that is in no order into one: before the slots at the end that are `later`, of
    /// which at most [`MAX_WALK`] are passed. Returns the slot before it.
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

    /// Takes a slot out of its order.
    #[inline]
    pub(super) fn take(&mut self, slot: Slot) {
        let at = slot + R as LinkIndex;
        let Link { prev, next } = *self.link(at);
        self.link(prev).next = next;
        self.link(next).prev = prev;
        *self.link(at) = Link::alone(at as usize);
    }

    /// The first slot of an order.
    #[inline]
    pub(super) fn first(&self, ring: usize) -> Option<Slot> {
        self.links[ring].next.checked_sub(R as LinkIndex)
    }
}

#[cfg(test)]
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
