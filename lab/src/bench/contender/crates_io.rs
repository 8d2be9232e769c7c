//! The crate `offset-allocator`, behind a mutex.
//!
//! A Rust port of the allocator that the published one is derived from: 32-bit sizes, no rounding,
//! no handles of its own. Creating a space above 3.75 GiB, its largest bin, returns an error,
//! because the crate panics when it searches for such a range.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use offset_allocator::{Allocation, Allocator};

use super::{Contender, RangeHandle, Space};

/// The size of its largest bin.
const MAX_CAPACITY: u64 = 15 << 28;

type SharedCrate = Arc<Mutex<Allocator<u32>>>;

fn lock(shared: &SharedCrate) -> MutexGuard<'_, Allocator<u32>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator.
pub struct CrateAllocator(SharedCrate);

/// A live range.
pub struct CrateHandle {
    owner: SharedCrate,
    allocation: Allocation<u32>,
    size: u32,
}

impl RangeHandle for CrateHandle {
    #[inline]
    fn size(&self) -> u64 {
        u64::from(self.size)
    }
}

impl Drop for CrateHandle {
    fn drop(&mut self) {
        lock(&self.owner).free(self.allocation);
    }
}

impl Contender for CrateAllocator {
    type Handle = CrateHandle;

    fn create(space: Space) -> Result<Self> {
        let capacity = space.capacity;
        ensure!(
            (1..=MAX_CAPACITY).contains(&capacity),
            "the space has {capacity} bytes: use 1 byte to 3.75 GiB, the crate's largest bin"
        );
        let max_nodes = u32::try_from(space.max_live.saturating_mul(2).saturating_add(2))?;
        Ok(Self(Arc::new(Mutex::new(Allocator::with_max_allocs(capacity as u32, max_nodes)))))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<CrateHandle> {
        let size =
            u32::try_from(size).ok().filter(|&size| size > 0 && u64::from(size) <= MAX_CAPACITY)?;
        let allocation = lock(&self.0).allocate(size)?;
        Some(CrateHandle { owner: self.0.clone(), allocation, size })
    }
}
