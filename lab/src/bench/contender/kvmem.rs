//! The library, through its public interface.
//!
//! Nothing is tuned for the loops: the allocators have their default settings, and the handles are
//! those of users. [`ExtentCache`] has the interface of [`OffsetAllocator`], so one macro serves
//! both.

use kvmem::offset::{Allocation, OffsetAllocator};
use kvmem::slab::{Extent, ExtentCache};

use anyhow::Result;

use super::{Contender, RangeHandle, Space};

macro_rules! contender {
    ($allocator:ident, $handle:ident) => {
        impl RangeHandle for $handle {
            #[inline]
            fn size(&self) -> u64 {
                self.len()
            }
        }

        impl Contender for $allocator {
            type Handle = $handle;

            fn create(space: Space) -> Result<Self> {
                Ok(Self::new(space.capacity)?)
            }

            #[inline]
            fn allocate(&self, size: u64) -> Option<$handle> {
                self.allocate(size).ok()
            }

            fn allocate_scattered(&self, total: u64, max_ranges: usize) -> Option<Vec<$handle>> {
                self.allocate_scattered(total, max_ranges).ok()
            }

            fn metadata_bytes(&self) -> Option<u64> {
                Some(self.metrics().metadata_bytes)
            }
        }
    };
}

contender!(OffsetAllocator, Allocation);
contender!(ExtentCache, Extent);

/// A space with `SHARDS` shards, in the rows that tell what shards cost.
pub struct Sharded<const SHARDS: u32>(OffsetAllocator);

impl<const SHARDS: u32> Contender for Sharded<SHARDS> {
    type Handle = Allocation;

    fn create(space: Space) -> Result<Self> {
        Ok(Self(OffsetAllocator::builder(space.capacity).shards(SHARDS).build()?))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Allocation> {
        self.0.allocate(size).ok()
    }

    fn metadata_bytes(&self) -> Option<u64> {
        Some(self.0.metrics().metadata_bytes)
    }
}
