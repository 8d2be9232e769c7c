//! *SpaceHandle*: a space as the layer above sees it, which keeps ranges of it for its threads.
//!
//! It identifies the space by the number of its core, as an allocation does. It stays valid after
//! the allocator is dropped, until its last allocation is freed.

use super::allocation::Allocation;
use super::allocator::OffsetAllocator;
use super::hint::SpaceStats;
use super::range::{Range, known_size, short_size};
use super::registry;
use super::shards::Keepalive;
#[cfg(all(test, not(loom)))]
use super::space_core::HeldLock;
use super::space_core::SpaceCore;
use crate::offset::error::{AllocError, CheckError};
use crate::offset::heap::MapRange;
use crate::offset::heap::Placed;

/// A space, identified by its core.
#[derive(Clone, Copy)]
pub(crate) struct SpaceHandle {
    index: u32,
    core: &'static SpaceCore,
}

impl SpaceHandle {
    /// Returns the space of that number.
    pub(crate) fn new(index: u32) -> Self {
        SpaceHandle { index, core: registry::core(index) }
    }

    /// Returns the space of an allocator.
    pub(crate) fn of(allocator: &OffsetAllocator) -> Self {
        Self::new(allocator.core_index())
    }

    /// Returns its number: below 2^31, the smallest free one when the allocator was created.
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    /// Keeps an object alive until the allocator and all allocations of the space are gone: the
    /// memory that its offsets refer to.
    pub(crate) fn keep(self, keepalive: Keepalive) {
        self.core.keep(keepalive);
    }

    /// See [`SpaceCore::set_combining`].
    pub(crate) fn set_combining(self, combines: bool) {
        self.core.set_combining(combines);
    }

    /// Returns an upper bound of the longest free range, without the lock.
    #[inline]
    pub(crate) fn largest_free_hint(self) -> u64 {
        self.core.largest_free_hint()
    }

    /// Returns the same of a space that is not cut, or the greatest number. One load.
    #[inline(always)]
    pub(crate) fn whole_hint(self) -> u64 {
        self.core.hint.largest()
    }

    /// Returns the free bytes of a space whose [`whole_hint`](Self::whole_hint) a size exceeds: it
    /// is not cut, and no free is left to the holder of the lock. One load.
    #[inline(always)]
    pub(crate) fn whole_free(self) -> u64 {
        self.core.hint.free()
    }

    /// Returns the error of a request of 0 bytes, or of more than `largest_free`, a value of
    /// [`whole_hint`](Self::whole_hint).
    #[inline(always)]
    pub(crate) fn error_above(self, size: u64, largest_free: u64) -> AllocError {
        self.core.fail_early(size, largest_free)
    }

    /// Returns whether a free range may have `size` bytes, without the lock. O(1): where the space
    /// is cut, the shard of the thread decides, and the others may have one if it has none.
    #[inline]
    pub(crate) fn may_serve(self, size: u64) -> bool {
        self.core.may_serve(size)
    }

    /// Returns whether the space is cut.
    #[inline]
    pub(crate) fn is_cut(self) -> bool {
        self.core.sharded().is_some()
    }

    /// See [`SpaceCore::may_have`].
    #[inline]
    pub(crate) fn may_have(self, size: u64) -> bool {
        self.core.may_have(size)
    }

    /// Returns the free bytes of a recent moment, without the lock: those of the thread's shard if
    /// the space is cut. O(1).
    #[inline]
    pub(crate) fn free_here(self) -> u64 {
        self.core.free_here()
    }

    /// Returns an upper bound of the free bytes, without the lock.
    #[inline]
    pub(crate) fn free_bound(self) -> u64 {
        self.core.free_bound()
    }

    /// Returns the length of the longest range that this space could ever allocate, without the
    /// lock.
    #[inline]
    pub(crate) fn limit_hint(self) -> u64 {
        self.core.limit_hint()
    }

    /// Returns the figures that the last holder of the lock published for reports, without the
    /// lock.
    pub(crate) fn published_stats(self) -> SpaceStats {
        self.core.published_stats()
    }

    /// Returns the error of a request that cannot succeed, without the lock.
    #[inline]
    pub(crate) fn early_error(self, size: u64) -> AllocError {
        self.core.early_error(size)
    }

    /// Allocates one range if fewer than `max_live` are in use.
    #[inline]
    pub(crate) fn take(self, size: u64, max_live: u64) -> Result<Range, AllocError> {
        let Placed { node, offset } = self.core.allocate_below(size, max_live)?;
        Ok(Range::new(offset, short_size(size), node))
    }

    /// Allocates `size` bytes as [`take`](Self::take) does, at most the hint; says no reason if it
    /// fails.
    #[inline(always)]
    pub(crate) fn try_take(self, size: u64, max_live: u64) -> Option<Range> {
        let Placed { node, offset } = match self.core.try_allocate_below(size, max_live) {
            Some(placed) => placed?,
            None => self.core.allocate_waiting(size, max_live).ok()?,
        };
        Some(Range::new(offset, short_size(size), node))
    }

    /// Allocates up to `n` ranges under one lock and appends them to `out`. Fewer only if no more
    /// fit, or `max_live` are in use, or the space is cut and no more fit into one shard.
    pub(crate) fn take_many(self, size: u32, n: usize, max_live: u64, out: &mut Vec<Range>) {
        let taken = self.core.take_many(u64::from(size), n, max_live);
        out.extend(taken.into_iter().map(|Placed { node, offset }| Range::new(offset, size, node)));
    }

    /// Frees one range.
    #[inline]
    pub(crate) fn give_back(self, range: Range) {
        if self.core.free(range.placed(), known_size(range.size())) {
            registry::release_slot(self.index);
        }
    }

    /// Frees all ranges under one lock.
    pub(crate) fn give_back_all(self, ranges: &mut Vec<Range>) {
        let Some(last) = ranges.pop() else { return };
        if !ranges.is_empty() {
            let whole = self.core.with_whole(|state| {
                for range in ranges.drain(..) {
                    state.heap.free(range.node(), range.offset(), u64::from(range.size()));
                }
            });
            if whole.is_err() {
                ranges.drain(..).for_each(|range| self.give_back(range));
            }
        }
        // Freeing the last range of a space drops its state.
        self.give_back(last);
    }

    /// Returns the range as an allocation, which frees it when dropped.
    #[inline]
    pub(crate) fn allocation(self, range: Range) -> Allocation {
        Allocation::of_range(self.index, range)
    }

    /// Returns the map of the space; see [`OffsetAllocator::map`].
    pub(crate) fn map(self) -> Vec<MapRange> {
        self.core.map()
    }

    /// Checks the metadata, and that these ranges are in use.
    pub(crate) fn check(self, ranges: &[Range]) -> Result<(), CheckError> {
        self.core.check()?;
        ranges.iter().try_for_each(|range| {
            let size = u64::from(range.size());
            self.core.with_at(range.placed(), |state, own| state.heap.check_used(own, size))
        })
    }

    /// Takes the lock of the metadata until the returned value is dropped.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn lock_for_test(self) -> HeldLock {
        self.core.lock_for_test()
    }
}
