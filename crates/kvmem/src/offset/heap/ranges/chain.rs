//! *Range chain*: the nodes of all ranges, in a ring in address order.
//!
//! Node 0, the *sentinel*, closes the ring and is neither used nor free. A used node stores where
//! its range begins. A free node stores the number of its hole.

use std::hint::select_unpredictable;
use std::ops::Index;

use super::super::bins::NULL_HOLE;
use super::super::chunked_table::{ChunkedTable, NIL, TableSlot};

/// The node that closes the ring.
pub(crate) const SENTINEL: u32 = 0;

/// A range in the chain.
#[derive(Clone, Copy)]
pub(crate) struct RangeNode {
    /// Where a used range begins (for the sentinel, where the space ends), or the [`free_word`] of
    /// a free range's hole.
    word: u64,
    /// Neighbours in address order.
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

/// Above every offset, so it is never mistaken for one.
const FREE: u64 = (u32::MAX as u64) << 32;

#[inline]
pub(super) fn free_word(hole: u32) -> u64 {
    FREE | u64::from(hole)
}

impl RangeNode {
    /// Returns the first word: where a used range begins.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// Returns the hole of a free range.
    #[inline]
    pub(crate) fn hole(&self) -> Option<u32> {
        (self.word >= FREE).then_some(self.word as u32)
    }

    /// Returns the hole of a free range, or [`NULL_HOLE`]. Without a branch: whether a neighbour is
    /// free is unpredictable.
    #[inline]
    pub(super) fn hole_or_null(&self) -> u32 {
        select_unpredictable(self.word >= FREE, self.word as u32, NULL_HOLE)
    }
}

impl TableSlot for RangeNode {
    const EMPTY: Self = RangeNode { word: 0, prev: NIL, next: NIL };
}

/// The nodes of all ranges.
pub(crate) struct RangeChain(ChunkedTable<RangeNode>);

impl RangeChain {
    /// Creates the chain of no range, whose space ends at `end`, for at most `max_ranges`.
    pub(super) fn new(end: u64, max_ranges: u32) -> Self {
        let mut nodes = ChunkedTable::new(max_ranges.saturating_add(1));
        let sentinel = nodes.insert(RangeNode { word: end, prev: SENTINEL, next: SENTINEL });
        debug_assert_eq!(sentinel, SENTINEL);
        RangeChain(nodes)
    }

    /// Creates the chain of these nodes, which keep their numbers and are in address order. The
    /// space ends at `end`. O(greatest number).
    pub(super) fn with_nodes(end: u64, max_ranges: u32, words: &[(u32, u64)]) -> Self {
        let id = |at: usize| words.get(at).map_or(SENTINEL, |&(id, _)| id);
        let node =
            |at: usize, word| RangeNode { word, prev: id(at.wrapping_sub(1)), next: id(at + 1) };
        let (first, last) = (id(0), id(words.len().wrapping_sub(1)));
        let sentinel = (SENTINEL, RangeNode { word: end, prev: last, next: first });
        let others = words.iter().enumerate().map(|(at, &(id, word))| (id, node(at, word)));
        let nodes = std::iter::once(sentinel).chain(others);
        RangeChain(ChunkedTable::with_slots(max_ranges.saturating_add(1), nodes))
    }

    /// Returns whether all nodes, used or not, have numbers below `end`.
    pub(crate) fn is_within(&self, end: u32) -> bool {
        self.0.end() <= u64::from(end)
    }

    /// Returns the number of nodes in use, the sentinel among them.
    #[inline]
    pub(crate) fn live(&self) -> u32 {
        self.0.live()
    }

    /// Returns whether `n` more nodes can be used.
    #[inline(always)]
    pub(crate) fn has_room_for(&self, n: u32) -> bool {
        self.0.has_room_for(n)
    }

    /// Returns the number of nodes that can still be used.
    #[inline]
    pub(crate) fn remaining(&self) -> u32 {
        self.0.remaining()
    }

    /// Returns whether the node exists, in use or not.
    pub(super) fn contains(&self, node: u32) -> bool {
        self.0.contains(node)
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Links a used range that begins at `offset` between `node` and the range before it.
    #[inline]
    pub(super) fn insert_before(&mut self, node: u32, offset: u64) -> u32 {
        let prev = self.0[node].prev;
        self.insert_between(prev, node, offset)
    }

    /// Links a used range that begins at `offset` between `node` and the range after it.
    #[inline]
    pub(super) fn insert_after(&mut self, node: u32, offset: u64) -> u32 {
        let next = self.0[node].next;
        self.insert_between(node, next, offset)
    }

    /// Links a used range that begins at `offset` between two neighbours.
    #[inline(always)]
    pub(super) fn insert_between(&mut self, prev: u32, next: u32, offset: u64) -> u32 {
        let id = self.0.insert(RangeNode { word: offset, prev, next });
        self.0[prev].next = id;
        self.0[next].prev = id;
        id
    }

    /// Removes `node` from the chain and frees it.
    #[inline(always)]
    pub(super) fn remove(&mut self, node: u32) {
        let RangeNode { prev, next, .. } = self.0.remove(node);
        self.join(prev, next);
    }

    /// Frees `node`, which lies between `prev` and `next`.
    #[inline(always)]
    pub(super) fn remove_between(&mut self, prev: u32, node: u32, next: u32) {
        self.0.free(node);
        self.join(prev, next);
    }

    /// Frees `node`, which lies between `prev` and `second`, and `second`.
    #[inline(always)]
    pub(super) fn remove_two(&mut self, prev: u32, node: u32, second: u32) {
        self.0.free(node);
        let next = self.0.remove(second).next;
        self.join(prev, next);
    }

    /// Makes two nodes neighbours.
    #[inline(always)]
    fn join(&mut self, prev: u32, next: u32) {
        self.0[prev].next = next;
        self.0[next].prev = prev;
    }

    /// Marks a linked node as a used range that begins at `offset`.
    #[inline]
    pub(super) fn set_used(&mut self, node: u32, offset: u64) {
        self.0[node].word = offset;
    }

    /// Marks a linked node as the free range of hole `id`.
    #[inline]
    pub(super) fn set_free(&mut self, node: u32, id: u32) {
        self.0[node].word = free_word(id);
    }

    /// Moves the end of the space.
    pub(super) fn set_end(&mut self, end: u64) {
        self.0[SENTINEL].word = end;
    }
}

impl Index<u32> for RangeChain {
    type Output = RangeNode;

    #[inline]
    fn index(&self, node: u32) -> &RangeNode {
        &self.0[node]
    }
}
