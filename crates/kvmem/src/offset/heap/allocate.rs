//! *Allocate*: the order in which a request tries its ways to a range.
//!
//! 1. A deferred range of just its size is [reused](super::deferred).
//! 2. A space into which nothing has been freed yet allocates [in order](super::order).
//! 3. A space that is mostly free [keeps](super::quick_lists) freed ranges, and takes one of just
//!    this size.
//! 4. A small request is cut from the [small-object region](super::small_objects).
//! 5. A request that slots exist for begins [at a free slot](super::slots).
//! 6. The [search](super::search) chooses a binned hole.
//! 7. A request that fits nowhere else opens a hole that is held back, before it fails.

use super::deferred::DeferredFree;
use super::heap::Heap;
use super::ranges::Placed;
#[cfg(doc)]
use super::search::FLOOR_ENTRIES;

impl Heap {
    /// Allocates `size` ≥ 1 bytes. Returns `None` if no free range is that long, or if no node is
    /// left.
    ///
    /// O(1): it examines at most [`FLOOR_ENTRIES`] holes and four bins, plus 24 holes if there are
    /// slots and 256 ranges when it opens a small-object region. Only a request that fits nothing
    /// else reads its own list to the end.
    #[inline]
    pub(crate) fn allocate(&mut self, size: u64) -> Option<Placed> {
        self.reuse(size).or_else(|| self.allocate_new(size))
    }

    /// Reuses the deferred range if it has exactly this size and may be reused.
    #[inline(always)]
    pub(crate) fn reuse(&mut self, size: u64) -> Option<Placed> {
        let DeferredFree { node, offset, .. } = self.deferred.reuse(size)?;
        self.policy.record(size);
        self.ranges.count_allocated(size);
        Some(Placed { node, offset })
    }

    /// Allocates `size` bytes when there is nothing to reuse.
    #[inline(always)]
    pub(crate) fn allocate_new(&mut self, size: u64) -> Option<Placed> {
        if self.is_quick(size) {
            return self.allocate_quick(size);
        }
        self.coalesce();
        // The first test answers almost all requests: it may only be too generous.
        if size > self.ranges.bins().largest_bound() && size > self.largest_coalesced() {
            return None;
        }
        let placed = self.allocate_coalesced(size)?;
        self.policy.record(size);
        Some(placed)
    }

    /// Allocates `size` bytes in a roomy space: a range of just this size that was freed, or else
    /// the first hole that fits.
    #[inline(never)]
    fn allocate_quick(&mut self, size: u64) -> Option<Placed> {
        if let Some(DeferredFree { node, offset, .. }) = self.quick.pop(size) {
            self.policy.record(size);
            self.ranges.count_allocated(size);
            return Some(Placed { node, offset });
        }
        // The ranges in the lists stay there: the hole that makes the space roomy is left.
        self.deferred.coalesce_into(&mut self.ranges);
        let placed = self.allocate_coalesced(size)?;
        self.policy.record(size);
        Some(placed)
    }

    /// Allocates `size` bytes when nothing is deferred, except in the quick lists of a roomy space.
    #[inline(always)]
    fn allocate_coalesced(&mut self, size: u64) -> Option<Placed> {
        if !self.has_free_nodes() {
            return self.fit_whole(size, 1);
        }
        let apart =
            if self.fresh { self.allocate_in_order(size) } else { self.allocate_special(size) };
        if apart.is_some() {
            return apart;
        }
        if let Some(placed) = self.fit(size) {
            return Some(placed);
        }
        let opened = self.close_region() && self.ranges.largest_binned() >= size
            || self.ranges.open_segment(size);
        opened.then(|| self.fit_opened(size)).flatten()
    }

    /// Allocates a small request from the small-object region, and a request that slots exist for
    /// at the start of a free slot.
    #[inline(always)]
    fn allocate_special(&mut self, size: u64) -> Option<Placed> {
        if self.policy.is_small(size)
            && let Some(placed) = self.allocate_in_region(size)
        {
            return Some(placed);
        }
        self.policy.slot(size).and_then(|slot| self.fit_slot(size, slot))
    }
}
