//! *ShardedAllocatorBuilder*: the settings of a space with shards.

use super::cuts::ShardCuts;
use super::sharded_allocator::ShardedAllocator;
use crate::offset::allocator::{MIN_RANGES, OffsetAllocatorBuilder};
use crate::offset::error::SpaceError;

/// Settings of a new space with shards; see [`OffsetAllocatorBuilder::shards`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct ShardedAllocatorBuilder {
    space: OffsetAllocatorBuilder,
    shards: u32,
}

impl OffsetAllocatorBuilder {
    /// Cuts the space into `shards` parts of about equal length with a lock each. Threads request
    /// from different shards, and from the others when their own is full.
    ///
    /// No allocation lies in two shards, so none is longer than a shard, and less of the space can
    /// be used: see [Shards](crate::offset#shards). Set it last; the other settings hold for the
    /// whole space.
    ///
    /// ```
    /// use kvmem::offset::{AllocError, OffsetAllocator};
    ///
    /// let space = OffsetAllocator::builder(64 << 30).shards(8).build()?;
    /// assert_eq!((space.shards(), space.longest_shard()), (8, 8 << 30));
    /// // More than one shard has room for: the rest is from the others.
    /// let blocks = space.allocate_batch(1 << 30, 50)?;
    /// assert_eq!(space.metrics().allocated, 50 << 30);
    /// let error = space.allocate(9 << 30).unwrap_err();
    /// assert_eq!(error, AllocError::ShardTooShort { requested: 9 << 30, shard: 8 << 30 });
    /// # drop(blocks);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shards(self, shards: u32) -> ShardedAllocatorBuilder {
        ShardedAllocatorBuilder { space: self, shards }
    }
}

impl ShardedAllocatorBuilder {
    /// Creates the space. O(shards), about 44 KiB for each whatever the capacity.
    ///
    /// # Errors
    /// Those of [`OffsetAllocatorBuilder::build`]; [`SpaceError::MaxRanges`] below 16 ranges for
    /// each shard. [`SpaceError::Shards`] for 0 shards, for more than 1,024, and for more than the
    /// space has bytes, or segments if it has a boundary.
    pub fn build(self) -> Result<ShardedAllocator, SpaceError> {
        let ShardedAllocatorBuilder { space, shards } = self;
        space.check(MIN_RANGES)?;
        let cuts = ShardCuts::new(space.capacity, space.boundary, shards)?;
        space.check(MIN_RANGES * shards)?;
        let max_ranges = space.max_ranges / shards;
        let longest = cuts.longest();
        let shard = |at| space.build_shard(cuts.range(at), longest, max_ranges);
        Ok(ShardedAllocator::new((0..cuts.len()).map(shard).collect(), cuts))
    }
}
