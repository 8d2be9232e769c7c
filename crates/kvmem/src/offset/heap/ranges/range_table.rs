//! *Range table*: the space, divided into used and free ranges.
//!
//! The space is divided into ranges, used or free, without gap or overlap. It begins at 0, or, if
//! it is a [shard](crate::offset::sharded), at a later offset of the space that it is a part of.
//! Each range has a node in a [chain](super::chain). The node of a free range names its
//! [hole](super::super::bins::Hole), which stores offset, size and a place in a bin.
//!
//! Some holes are *held back* from the bins: the [runs](super::runs) of free segments of a space
//! with a boundary, and the [small-object region](super::small_region). They count as free.

use std::hint::select_unpredictable;
use std::ops::Range;

use super::super::bins::{Bins, Hole};
use super::super::chunked_table::NIL;
use super::chain::{RangeChain, RangeNode, SENTINEL};
use super::placed::Placed;
use super::runs::{NO_BOUNDARY, Runs};

/// The ranges of a space.
pub(crate) struct RangeTable {
    pub(super) chain: RangeChain,
    pub(super) bins: Bins,
    pub(super) runs: Runs,
    /// The hole held back for small objects, or `NIL`.
    pub(super) small_region: u32,
    /// Length of the space. Its end is stored in the sentinel.
    pub(super) capacity: u64,
    /// Bytes in use.
    pub(super) allocated: u64,
    /// Ranges in use.
    pub(super) live: u64,
}

impl RangeTable {
    /// Creates the table of a space in which no range is linked yet.
    pub(super) fn without_ranges(
        space: &Range<u64>,
        boundary: Option<u64>,
        max_ranges: u32,
    ) -> Self {
        RangeTable {
            chain: RangeChain::new(space.end, max_ranges),
            bins: Bins::new(),
            runs: Runs::new(boundary),
            small_region: NIL,
            capacity: space.end - space.start,
            allocated: 0,
            live: 0,
        }
    }

    /// Returns the nodes of the ranges.
    #[inline(always)]
    pub(crate) fn chain(&self) -> &RangeChain {
        &self.chain
    }

    /// Returns the holes.
    #[inline(always)]
    pub(crate) fn bins(&self) -> &Bins {
        &self.bins
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the boundary, or [`NO_BOUNDARY`].
    pub(crate) fn boundary(&self) -> u64 {
        self.runs.boundary
    }

    /// Returns the bytes in use.
    #[inline]
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the bytes not in use.
    #[inline]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.capacity - self.allocated
    }

    /// Returns the number of ranges in use.
    #[inline]
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Returns the number of ranges, used and free.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.chain.live()) - 1
    }

    /// Returns the heap bytes of the metadata.
    pub(crate) fn bytes(&self) -> usize {
        self.chain.bytes() + self.bins.bytes()
    }

    /// Returns an upper bound of the ranges that can still be allocated: each takes a free node or
    /// a whole hole.
    pub(crate) fn max_more_ranges(&self) -> u64 {
        u64::from(self.chain.remaining()) + u64::from(self.bins.live())
    }

    /// Counts a range of `size` bytes as used.
    #[inline]
    pub(crate) fn count_allocated(&mut self, size: u64) {
        self.allocated += size;
        self.live += 1;
    }

    /// Counts a used range of `size` bytes as free.
    #[inline]
    pub(crate) fn count_freed(&mut self, size: u64) {
        self.allocated -= size;
        self.live -= 1;
    }

    /// Returns whether free ranges stay apart at `offset`.
    #[inline]
    pub(super) fn is_edge(&self, offset: u64) -> bool {
        self.runs.is_edge(offset)
    }

    /// Returns whether the space has a boundary.
    #[inline]
    pub(crate) fn has_boundary(&self) -> bool {
        self.runs.boundary != NO_BOUNDARY
    }

    /// Returns where the range `node` begins; for the sentinel, where the space ends.
    #[inline]
    pub(crate) fn start_of(&self, node: u32) -> u64 {
        let node = &self.chain[node];
        node.hole().map_or(node.word(), |id| self.bins[id].offset)
    }

    /// Returns where the used range `node` begins.
    #[inline]
    pub(crate) fn offset_of(&self, node: u32) -> u64 {
        self.chain[node].word()
    }

    /// Returns the bytes of the used range `node`.
    pub(crate) fn range_of(&self, node: u32) -> Range<u64> {
        self.chain[node].word()..self.start_of(self.chain[node].next)
    }

    /// Returns the length of a used range.
    #[cold]
    pub(crate) fn size_of(&self, placed: Placed) -> u64 {
        self.range_of(placed.node).end - placed.offset
    }

    /// Returns the sizes of the holes that would appear if the left or the right neighbour of hole
    /// `id` were freed: the neighbour's size plus the free range on its far side. Across the
    /// sentinel, a boundary or a hole that is held back, the far side counts as 0.
    #[inline(always)]
    pub(crate) fn neighbour_sizes(&self, id: u32) -> (u64, u64) {
        let hole = &self.bins[id];
        self.sizes_around(hole, self.chain[hole.node])
    }

    /// Returns the [sizes](Self::neighbour_sizes) at a hole whose record and node have been read.
    #[inline(always)]
    pub(crate) fn sizes_around(&self, hole: &Hole, node: RangeNode) -> (u64, u64) {
        let RangeNode { prev, next, .. } = node;
        let mut sides = (0, 0);
        let left = self.chain[prev];
        if prev != SENTINEL && left.hole().is_none() {
            let beyond = self.chain[left.prev].hole_or_null();
            let free = if self.is_edge(left.word()) { 0 } else { self.bins[beyond].size };
            sides.0 = hole.offset - left.word() + free;
        }
        let right = self.chain[next];
        if next != SENTINEL && right.hole().is_none() {
            let behind = self.chain[right.next];
            let beyond = &self.bins[behind.hole_or_null()];
            let end = select_unpredictable(behind.hole().is_some(), beyond.offset, behind.word());
            let free = if self.is_edge(end) { 0 } else { beyond.size };
            sides.1 = end - hole.end() + free;
        }
        sides
    }
}
