//! *OffsetAllocatorBuilder*: the settings of a new space.

use super::allocator::{OffsetAllocator, check_capacity};
use super::shards::MAX_SHARDS;
#[cfg(doc)]
use crate::offset::error::AllocError;
use crate::offset::error::SpaceError;
use crate::offset::heap::Heap;
use crate::offset::placement::Placement;

/// Lower bound of [`OffsetAllocatorBuilder::max_ranges`]: a few changes must be possible.
const MIN_RANGES: u32 = 16;

/// Settings of a new space; see [`OffsetAllocator::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct OffsetAllocatorBuilder {
    capacity: u64,
    boundary: Option<u64>,
    placement: Placement,
    max_ranges: u32,
    shards: Option<u32>,
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

    /// Fixes the number of [shards](crate::offset#shards), 1 to 63: the space is cut at once, or
    /// never with 1. Otherwise it is cut when threads contend for its lock.
    ///
    /// ```
    /// use kvmem::offset::OffsetAllocator;
    ///
    /// let space = OffsetAllocator::builder(64 << 30).shards(8).build()?;
    /// // Shards give free bytes to each other: a range can be longer than one.
    /// let long = space.allocate(60 << 30)?;
    /// # drop(long);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Creates the space. O(shards), about 44 KiB for each whatever the capacity.
    ///
    /// # Errors
    /// [`SpaceError::Capacity`] outside of 1..=2^63, [`SpaceError::ZeroBoundary`] for boundary 0,
    /// [`SpaceError::MaxRanges`] below 16, or 16 for each shard; [`SpaceError::Shards`] for 0
    /// shards, for more than 32, and for more than the space has bytes, or segments if it has a
    /// boundary.
    pub fn build(self) -> Result<OffsetAllocator, SpaceError> {
        let OffsetAllocatorBuilder { capacity, boundary, placement, max_ranges, shards } = self;
        check_capacity(capacity)?;
        if boundary == Some(0) {
            return Err(SpaceError::ZeroBoundary);
        }
        let pieces = boundary.map_or(capacity, |boundary| capacity.div_ceil(boundary));
        let max = pieces.min(MAX_SHARDS as u64) as u32;
        if let Some(requested) = shards.filter(|shards| !(1..=max).contains(shards)) {
            return Err(SpaceError::Shards { requested, max });
        }
        let min = MIN_RANGES * shards.unwrap_or(1);
        if max_ranges < min {
            return Err(SpaceError::MaxRanges { requested: max_ranges, min });
        }
        let heap = Heap::new(0..capacity, boundary, placement, max_ranges);
        Ok(OffsetAllocator::of_heap(heap, boundary, shards))
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
            shards: None,
        }
    }
}
