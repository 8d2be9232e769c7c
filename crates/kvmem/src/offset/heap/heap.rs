//! *Heap*: the metadata of one space. One thread at a time uses it.

use std::ops::Range;

use super::deferred::{DeferredFrees, largest_bound};
use super::quick_lists::QuickLists;
use super::ranges::{Placed, RangeTable};
use super::region_searches::RegionSearches;
use crate::offset::error::AllocError;
use crate::offset::placement::{Placement, PlacementPolicy};

/// Upper bound of the nodes that a single change needs.
pub(super) const NODES_PER_CHANGE: u32 = 4;

/// The metadata of a space: its ranges, and what decides where requests are placed.
pub(crate) struct Heap {
    pub(super) ranges: RangeTable,
    /// The ranges freed last that are not coalesced yet.
    pub(super) deferred: DeferredFrees,
    /// Freed ranges that wait for the next request of their size, in a space that is mostly free.
    pub(super) quick: QuickLists,
    pub(super) policy: PlacementPolicy,
    /// When to search for room for the next small-object region.
    pub(super) region_searches: RegionSearches,
    /// Nothing has been freed yet; see [order](super::order).
    pub(super) fresh: bool,
    /// The limit of the whole space, if this is one of its shards: others may be longer.
    pub(super) limit_of_shards: Option<u64>,
}

impl Heap {
    /// Creates the metadata of an empty space, whose bytes are the numbers `space`, at least one,
    /// for at most `max_ranges` ranges, used and free.
    pub(crate) fn new(
        space: Range<u64>,
        boundary: Option<u64>,
        placement: Placement,
        max_ranges: u32,
    ) -> Self {
        let capacity = space.end - space.start;
        Heap {
            ranges: RangeTable::new(space, boundary, max_ranges),
            deferred: DeferredFrees::default(),
            quick: QuickLists::new(),
            policy: PlacementPolicy::new(placement, capacity),
            region_searches: RegionSearches::default(),
            fresh: true,
            limit_of_shards: None,
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.ranges.capacity()
    }

    /// Returns the length of the longest range that an empty space could allocate.
    pub(crate) fn limit(&self) -> u64 {
        self.ranges.capacity().min(self.ranges.boundary())
    }

    /// Returns the boundary, if there is one.
    pub(crate) fn boundary(&self) -> Option<u64> {
        self.ranges.has_boundary().then(|| self.ranges.boundary())
    }

    /// Returns the [limit](Self::limit) of the whole space, of which this may be a shard.
    pub(crate) fn limit_of_space(&self) -> u64 {
        self.limit_of_shards.unwrap_or_else(|| self.limit())
    }

    #[inline]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.ranges.free_bytes()
    }

    #[inline]
    pub(crate) fn live(&self) -> u64 {
        self.ranges.live()
    }

    /// Returns the number of ranges, used and free.
    pub(crate) fn ranges(&self) -> u64 {
        self.ranges.len()
    }

    /// Returns where the used range `node` begins.
    #[inline]
    pub(crate) fn offset_of(&self, node: u32) -> u64 {
        self.ranges.offset_of(node)
    }

    /// Returns the bytes of the used range `node`.
    pub(crate) fn range_of(&self, node: u32) -> Range<u64> {
        self.ranges.range_of(node)
    }

    /// Returns the length of a used range.
    #[cold]
    pub(crate) fn size_of(&self, placed: Placed) -> u64 {
        self.ranges.size_of(placed)
    }

    /// Coalesces the deferred ranges. Every operation that reads the chain or the bins calls it
    /// first.
    #[inline]
    pub(super) fn coalesce(&mut self) {
        if !self.quick.is_empty() {
            self.quick.coalesce_all(&mut self.ranges);
        }
        self.deferred.coalesce_into(&mut self.ranges);
    }

    /// Returns whether a request for `size` bytes, or a free, may use the
    /// [quick lists](super::quick_lists).
    #[inline(always)]
    pub(super) fn is_quick(&self, size: u64) -> bool {
        let capacity = self.capacity();
        self.ranges.bins().has_hole_of(capacity / 2) && QuickLists::admit(size, capacity)
    }

    /// Returns the length of the longest range that could be allocated now. O(1).
    pub(crate) fn largest_free(&mut self) -> u64 {
        self.coalesce();
        self.largest_coalesced()
    }

    /// Returns the length of the longest range that could be allocated now, without the ranges
    /// whose coalescing is deferred.
    #[inline]
    pub(crate) fn largest_coalesced(&mut self) -> u64 {
        self.ranges.largest()
    }

    /// Returns an upper bound of the longest range that could be allocated now; exact if nothing is
    /// deferred. `coalesced` is the result of [`largest_coalesced`](Heap::largest_coalesced).
    #[inline]
    pub(crate) fn largest_free_bound(&self, coalesced: u64) -> u64 {
        let (deferred, quick) = (self.deferred.totals(), self.quick.totals());
        let totals = (deferred.0 + quick.0, deferred.1 + quick.1);
        largest_bound(coalesced, totals, self.free_bytes())
    }

    /// Returns the small-object region's hole to the bins; returns whether there was one.
    pub(super) fn close_region(&mut self) -> bool {
        self.coalesce();
        self.ranges.close_region()
    }

    /// Returns whether enough nodes are free for any one change.
    #[inline]
    pub(super) fn has_free_nodes(&mut self) -> bool {
        self.ranges.chain().has_room_for(NODES_PER_CHANGE) || self.reclaim_nodes()
    }

    /// Coalesces the small-object region to free its nodes; returns whether enough are free then.
    #[cold]
    fn reclaim_nodes(&mut self) -> bool {
        self.close_region();
        self.ranges.chain().has_room_for(NODES_PER_CHANGE)
    }

    /// Returns the error of a request of at least one byte that failed.
    #[cold]
    pub(crate) fn allocation_error(&mut self, requested: u64) -> AllocError {
        let limit = self.limit();
        if requested > limit {
            return AllocError::TooLarge { requested, limit };
        }
        let largest_free = self.largest_free();
        if requested <= largest_free && !self.has_free_nodes() {
            return AllocError::TooManyRanges { ranges: self.ranges() };
        }
        AllocError::OutOfSpace { requested, free: self.free_bytes(), largest_free }
    }
}
