//! The library, through its public interface.
//!
//! Nothing is tuned for the loops: the allocators have their default settings, and the handles are
//! those of users. [`ExtentCache`] has the interface of [`OffsetAllocator`], so one macro serves
//! both.

use kvmem::offset::{Allocation, OffsetAllocator, Placement};
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

/// A space with `SHARDS` shards and the default placement or best fit, in the rows that show what
/// these settings cost.
pub struct Built<const SHARDS: u32, const BEST_FIT: bool>(OffsetAllocator);

/// A space with `SHARDS` shards.
pub type Sharded<const SHARDS: u32> = Built<SHARDS, false>;
/// A space with [`Placement::BestFit`].
pub type BestFitPlaced = Built<1, true>;

impl<const SHARDS: u32, const BEST_FIT: bool> Contender for Built<SHARDS, BEST_FIT> {
    type Handle = Allocation;

    fn create(space: Space) -> Result<Self> {
        let placement = if BEST_FIT { Placement::BestFit } else { Placement::default() };
        let builder = OffsetAllocator::builder(space.capacity).shards(SHARDS);
        Ok(Self(builder.placement(placement).build()?))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Allocation> {
        self.0.allocate(size).ok()
    }

    fn metadata_bytes(&self) -> Option<u64> {
        Some(self.0.metrics().metadata_bytes)
    }
}
