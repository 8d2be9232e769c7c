//! *OffsetAllocatorBuilder*: the settings of a new space.

use std::ops::Range;

use super::allocator::{OffsetAllocator, check_capacity};
#[cfg(doc)]
use crate::offset::error::AllocError;
use crate::offset::error::SpaceError;
use crate::offset::heap::Heap;
use crate::offset::placement::Placement;

/// Lower bound of [`OffsetAllocatorBuilder::max_ranges`]: a few changes must be possible.
pub(crate) const MIN_RANGES: u32 = 16;

/// Settings of a new space; see [`OffsetAllocator::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct OffsetAllocatorBuilder {
    pub(crate) capacity: u64,
    pub(crate) boundary: Option<u64>,
    placement: Placement,
    pub(crate) max_ranges: u32,
}

impl OffsetAllocatorBuilder {
    /// Sets a boundary: no allocation crosses a multiple of `bytes`, nor is longer. Any length is
    /// allowed, not only powers of two.
    pub fn boundary(mut self, bytes: u64) -> Self {
        self.boundary = Some(bytes);
        self
    }

    /// Sets how to choose among the holes that fit.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Limits the number of ranges, used and free; metadata takes at most about 50 bytes per range.
    /// At the limit, requests that would divide a free range fail with
    /// [`AllocError::TooManyRanges`]; exact fits and frees still succeed. The default limit is
    /// about 2^32.
    pub fn max_ranges(mut self, ranges: u32) -> Self {
        self.max_ranges = ranges;
        self
    }

    /// Creates the space. O(1), about 44 KiB whatever the capacity.
    ///
    /// # Errors
    /// [`SpaceError::Capacity`] outside of 1..=2^63, [`SpaceError::ZeroBoundary`] for boundary 0,
    /// [`SpaceError::MaxRanges`] below 16.
    pub fn build(self) -> Result<OffsetAllocator, SpaceError> {
        self.check(MIN_RANGES)?;
        Ok(OffsetAllocator::of_heap(self.heap(0..self.capacity, self.max_ranges), self.boundary))
    }

    /// Checks the settings; at least `min_ranges` ranges are needed.
    pub(crate) fn check(&self, min_ranges: u32) -> Result<(), SpaceError> {
        check_capacity(self.capacity)?;
        if self.boundary == Some(0) {
            return Err(SpaceError::ZeroBoundary);
        }
        if self.max_ranges < min_ranges {
            return Err(SpaceError::MaxRanges { requested: self.max_ranges, min: min_ranges });
        }
        Ok(())
    }

    /// Creates the allocator of a shard, for at most `max_ranges` ranges. The longest shard of the
    /// space has `longest` bytes. The settings have been checked.
    pub(crate) fn build_shard(
        &self,
        shard: Range<u64>,
        longest: u64,
        max_ranges: u32,
    ) -> OffsetAllocator {
        let limit = self.boundary.map_or(longest, |boundary| boundary.min(longest));
        OffsetAllocator::of_heap(self.heap(shard, max_ranges).of_shards(limit), self.boundary)
    }

    fn heap(&self, space: Range<u64>, max_ranges: u32) -> Heap {
        Heap::new(space, self.boundary, self.placement, max_ranges)
    }
}

impl OffsetAllocator {
    /// Creates a space of `capacity` bytes, 1..=2^63, without boundary, with
    /// [`Placement::Renewal`].
    ///
    /// # Errors
    /// See [`OffsetAllocatorBuilder::build`].
    pub fn new(capacity: u64) -> Result<Self, SpaceError> {
        Self::builder(capacity).build()
    }

    /// Returns a builder for a space of `capacity` bytes with settings of its own.
    ///
    /// ```
    /// use kvmem::offset::OffsetAllocator;
    ///
    /// // Registered in chunks of 1 GiB: no allocation lies across two of them.
    /// let space = OffsetAllocator::builder(64 << 30).boundary(1 << 30).build()?;
    /// let a = space.allocate(600 << 20)?;
    /// let b = space.allocate(600 << 20)?;
    /// assert_ne!(a.offset() >> 30, b.offset() >> 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(capacity: u64) -> OffsetAllocatorBuilder {
        OffsetAllocatorBuilder {
            capacity,
            boundary: None,
            placement: Placement::default(),
            max_ranges: u32::MAX,
        }
    }
}
