//! The library, through its public face.
//!
//! Nothing is tuned for the loops: the allocator is the default one, and the handle is the one that users hold.

use kvmem::offset::{Allocation, OffsetAllocator};
use kvmem::slab::{Extent, ExtentCache};

use super::{Contender, ContenderId, CreateError, Held, Space};

impl Held for Allocation {
    #[inline]
    fn offset(&self) -> u64 {
        self.offset()
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size()
    }
}

impl Contender for OffsetAllocator {
    const ID: ContenderId = ContenderId::Kvmem;
    const SCATTERS: bool = true;
    type Handle = Allocation;

    fn create(space: Space) -> Result<Self, CreateError> {
        Self::new(space.capacity).map_err(|error| CreateError {
            contender: <Self as Contender>::ID,
            capacity: space.capacity,
            reason: error.to_string(),
        })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Allocation> {
        self.allocate(size).ok()
    }

    fn allocate_scattered(&self, total: u64, max_ranges: usize) -> Option<Vec<Allocation>> {
        self.allocate_scattered(total, max_ranges).ok()
    }

    fn metadata_bytes(&self) -> Option<u64> {
        Some(self.metrics().metadata_bytes)
    }
}

impl Held for Extent {
    #[inline]
    fn offset(&self) -> u64 {
        self.offset()
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size()
    }
}

impl Contender for ExtentCache {
    const ID: ContenderId = ContenderId::KvmemCached;
    const SCATTERS: bool = true;
    type Handle = Extent;

    fn create(space: Space) -> Result<Self, CreateError> {
        Self::new(space.capacity).map_err(|error| CreateError {
            contender: <Self as Contender>::ID,
            capacity: space.capacity,
            reason: error.to_string(),
        })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Extent> {
        self.allocate(size).ok()
    }

    fn allocate_scattered(&self, total: u64, max_ranges: usize) -> Option<Vec<Extent>> {
        self.allocate_scattered(total, max_ranges).ok()
    }

    fn metadata_bytes(&self) -> Option<u64> {
        Some(self.metrics().metadata_bytes)
    }
}
