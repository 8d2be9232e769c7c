//! *Ground*: a space as the layer above sees it, which keeps ranges of it for its threads.
//!
//! It names the space by the number of its core, as an allocation does: it is good after the
//! allocator is gone, as long as anything is allocated of it.

use super::allocation::Allocation;
use super::allocator::OffsetAllocator;
#[cfg(test)]
use super::core::HeldLock;
use super::core::{Keepalive, SpaceCore};
use super::error::{AllocError, CheckError};
use super::heap::Placed;
use super::hint::SpaceStats;
use super::range::Range;
use super::registry;
use super::report::MapRange;

/// A space, by its core.
#[derive(Clone, Copy)]
pub(crate) struct Ground {
    index: u32,
    core: &'static SpaceCore,
}

impl Ground {
    /// The space of that number.
    pub(crate) fn new(index: u32) -> Self {
        Ground { index, core: registry::core(index) }
    }

    /// That of an allocator.
    pub(crate) fn of(allocator: &OffsetAllocator) -> Self {
        Self::new(allocator.core_index())
    }

    /// Its number: below 2^31, the smallest that is free when an allocator is made.
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    /// Keeps something as long as anything is allocated of the space, or can be: what its offsets
    /// are of.
    pub(crate) fn keep(self, keepalive: Keepalive) {
        self.core.keep(keepalive);
    }

    /// An upper bound of the longest free range, without the lock.
    #[inline]
    pub(crate) fn largest_free_hint(self) -> u64 {
        self.core.largest_free_hint()
    }

    /// Free bytes of a recent moment, without the lock.
    #[inline]
    pub(crate) fn free_hint(self) -> u64 {
        self.core.free_hint()
    }

    /// The longest range that this space could ever grant, without the lock.
    #[inline]
    pub(crate) fn limit_hint(self) -> u64 {
        self.core.limit_hint()
    }

    /// What the last holder of the lock has left for reports, without the lock.
    pub(crate) fn left(self) -> SpaceStats {
        self.core.left()
    }

    /// Why a request that cannot be met is refused, without the lock.
    #[inline]
    pub(crate) fn refuse(self, size: u64) -> AllocError {
        self.core.fail_early(size, self.core.largest_free_hint())
    }

    /// One range, or why not.
    #[inline]
    pub(crate) fn take(self, size: u32) -> Result<Range, AllocError> {
        let Placed { node, offset } = self.core.allocate(u64::from(size))?;
        Ok(Range::new(offset, size, node))
    }

    /// Up to `n` ranges under one lock, onto `out`: fewer only if there are no more.
    pub(crate) fn take_many(self, size: u32, n: usize, out: &mut Vec<Range>) {
        self.core.with(|state| {
            for _ in 0..n {
                let Some(Placed { node, offset }) = state.heap.allocate(u64::from(size)) else {
                    break;
                };
                out.push(Range::new(offset, size, node));
            }
        });
    }

    /// Frees one.
    #[inline]
    pub(crate) fn give_back(self, range: Range) {
        if self.core.free(range.placed(), Some(u64::from(range.size()))) {
            registry::release_slot(self.index);
        }
    }

    /// Frees all of them under one lock.
    pub(crate) fn give_back_all(self, ranges: &mut Vec<Range>) {
        let Some(last) = ranges.pop() else { return };
        if !ranges.is_empty() {
            self.core.with(|state| {
                for range in ranges.drain(..) {
                    state.heap.free(range.node(), range.offset(), u64::from(range.size()));
                }
            });
        }
        // The last one of a space puts its books away.
        self.give_back(last);
    }

    /// The range as somebody's.
    #[inline]
    pub(crate) fn allocation(self, range: Range) -> Allocation {
        Allocation::of_range(self.index, range)
    }

    /// As [`OffsetAllocator::map`].
    pub(crate) fn map(self) -> Vec<MapRange> {
        self.core.with(|state| state.heap.map())
    }

    /// Checks the books, and that these ranges are on them.
    pub(crate) fn check(self, ranges: &[Range]) -> Result<(), CheckError> {
        self.core.check()?;
        self.core.with(|state| {
            ranges.iter().try_for_each(|range| {
                state.heap.check_used(range.placed(), u64::from(range.size()))
            })
        })
    }

    /// Takes the lock of the books, until it is dropped.
    #[cfg(test)]
    pub(crate) fn seize(self) -> HeldLock {
        self.core.seize()
    }
}
