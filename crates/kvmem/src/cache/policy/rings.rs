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
//! A node also has what its owner compares blocks by, which is then on the same cache line.
//!
//! Invariants: (1) the number of a slot's link is the slot, and that of an order's head is
//! `HEADS` + the order; (2) the `prev` of the link after *p* is *p* for each link *p*, and so is
//! the `next` of the link before it; (3) the ring of a head has exactly the slots of its order,
//! each once; the link of any other slot points to itself.

use super::eviction_policy::Slot;

/// The number of a link: a slot, or [`HEADS`] and an order.
type LinkIndex = u32;

/// The number of the head of the first order. No slot is that large.
const HEADS: LinkIndex = LinkIndex::MAX - 7;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: LinkIndex,
    next: LinkIndex,
}

impl Link {
    /// Makes a link that points to itself.
    fn alone(at: LinkIndex) -> Link {
        Link { prev: at, next: at }
    }
}

/// Aligned so that a value of 24 bytes is on the line of the link.
#[derive(Clone, Debug)]
#[repr(align(32))]
struct Node<T> {
    link: Link,
    own: T,
}

/// The maximum number of slots that [`Rings::push_before`] passes.
const MAX_WALK: usize = 64;

/// `R` orders of slots, and a value for each slot. Takes 8 bytes per slot and the value.
#[derive(Debug)]
pub(super) struct Rings<const R: usize, T> {
    heads: [Link; R],
    nodes: Vec<Node<T>>,
}

impl<const R: usize, T> Default for Rings<R, T> {
    fn default() -> Self {
        let head = |ring| Link::alone(HEADS + ring as LinkIndex);
        Rings { heads: std::array::from_fn(head), nodes: Vec::new() }
    }
}

impl<const R: usize, T: Default> Rings<R, T> {
    /// Adds nodes up to that of a slot.
    #[inline]
    pub(super) fn reach(&mut self, slot: Slot) {
        for at in self.nodes.len() as LinkIndex..=slot {
            self.nodes.push(Node { link: Link::alone(at), own: T::default() });
        }
    }
}

impl<const R: usize, T> Rings<R, T> {
    #[inline]
    fn link(&mut self, at: LinkIndex) -> &mut Link {
        if at >= HEADS {
            &mut self.heads[(at - HEADS) as usize]
        } else {
            &mut self.nodes[at as usize].link
        }
    }

    /// Returns the value of a slot.
    #[inline]
    pub(super) fn of(&self, slot: Slot) -> &T {
        &self.nodes[slot as usize].own
    }

    /// Returns the value of a slot, if the slot has been [reached](Self::reach).
    #[inline]
    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        self.nodes.get(slot as usize).map(|node| &node.own)
    }

    #[inline]
    pub(super) fn of_mut(&mut self, slot: Slot) -> &mut T {
        &mut self.nodes[slot as usize].own
    }

    /// Inserts a slot that is in no order and has been [reached](Self::reach) into an order, before
    /// the slots at its end for which `is_later` returns true. Passes at most [`MAX_WALK`] of them.
    /// Returns the slot before it.
    #[inline]
    pub(super) fn push_before(
        &mut self,
        ring: usize,
        slot: Slot,
        is_later: impl Fn(&T) -> bool,
    ) -> Option<Slot> {
        let mut next = HEADS + ring as LinkIndex;
        let mut prev = self.heads[ring].prev;
        for _ in 0..MAX_WALK {
            if prev >= HEADS || !is_later(&self.nodes[prev as usize].own) {
                break;
            }
            next = prev;
            prev = self.nodes[next as usize].link.prev;
        }
        *self.link(slot) = Link { prev, next };
        self.link(prev).next = slot;
        self.link(next).prev = slot;
        (prev < HEADS).then_some(prev)
    }

    /// Removes a slot from its order.
    #[inline]
    pub(super) fn take(&mut self, slot: Slot) {
        let Link { prev, next } = std::mem::replace(self.link(slot), Link::alone(slot));
        self.link(prev).next = next;
        self.link(next).prev = prev;
    }

    /// Iterates over the slots of an order, from the first on.
    #[inline]
    pub(super) fn iter(&self, ring: usize) -> impl Iterator<Item = Slot> + '_ {
        let next = |slot: &Slot| self.nodes[*slot as usize].link.next;
        // The head follows the last slot.
        let slot = |at: LinkIndex| Some(at).filter(|&at| at < HEADS);
        std::iter::successors(self.first(ring), move |at| slot(next(at)))
    }

    /// Returns the first slot of an order.
    #[inline]
    pub(super) fn first(&self, ring: usize) -> Option<Slot> {
        Some(self.heads[ring].next).filter(|&first| first < HEADS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn push<const R: usize>(rings: &mut Rings<R, Slot>, ring: usize, slot: Slot) {
        rings.reach(slot);
        *rings.of_mut(slot) = slot;
        rings.push_before(ring, slot, |_| false);
    }

    fn order<const R: usize>(rings: &mut Rings<R, Slot>, ring: usize) -> Vec<Slot> {
        std::iter::from_fn(|| {
            let first = rings.first(ring)?;
            rings.take(first);
            Some(first)
        })
        .collect()
    }

    #[test]
    fn a_slot_is_put_before_later_ones_as_far_as_the_walk_goes() {
        let mut rings = Rings::<1, Slot>::default();
        (0..100).for_each(|slot| push(&mut rings, 0, slot));
        rings.reach(202);
        assert_eq!(rings.push_before(0, 200, |&slot| slot >= 95), Some(94));
        assert_eq!(rings.push_before(0, 201, |_| false), Some(99));
        assert_eq!(rings.push_before(0, 202, |_| true), Some(37));
        let order = order(&mut rings, 0);
        let place = |slot| order.iter().position(|&other| other == slot);
        assert_eq!((place(202), place(200), place(201)), (Some(38), Some(96), Some(102)));
        assert_eq!(rings.push_before(0, 7, |_| true), None);
    }

    #[test]
    fn an_order_is_iterated_from_its_first_slot() {
        let mut rings = Rings::<2, Slot>::default();
        [(0, 5), (1, 7), (0, 2), (0, 9)]
            .into_iter()
            .for_each(|(ring, slot)| push(&mut rings, ring, slot));
        let of = |ring| rings.iter(ring).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![5, 2, 9], vec![7]));
        assert_eq!(Rings::<1, Slot>::default().iter(0).next(), None);
    }

    #[test]
    fn each_order_is_kept_by_itself() {
        let mut rings = Rings::<3, Slot>::default();
        for (ring, slot) in [(0, 5), (2, 1), (0, 3), (2, 9), (0, 0)] {
            push(&mut rings, ring, slot);
        }
        rings.take(3);
        push(&mut rings, 2, 3);
        rings.take(1);
        push(&mut rings, 2, 1);
        assert_eq!((rings.first(0), rings.first(1), rings.first(2)), (Some(5), None, Some(9)));
        assert_eq!(order(&mut rings, 2), [9, 3, 1]);
        assert_eq!((order(&mut rings, 0), order(&mut rings, 1)), (vec![5, 0], vec![]));
    }
}
