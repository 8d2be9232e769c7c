//! The crate `offset-allocator`, behind a mutex.
//!
//! A Rust port of the allocator that the published one was derived from: 32-bit sizes, no rounding,
//! no handles of its own. Spaces above 3.75 GiB, its largest bin, are refused: it panics when such
//! a range is searched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offset_allocator::{Allocation, Allocator};

use super::{Contender, ContenderId, CreateError, Held, Space};

/// The largest size that one of its bins stands for.
const CAPACITY_MAX: u64 = 15 << 28;

type Shared = Arc<Mutex<Allocator<u32>>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Allocator<u32>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator.
pub struct CrateAllocator(Shared);

/// A live range.
pub struct Handle {
    owner: Shared,
    allocation: Allocation<u32>,
    size: u32,
}

impl Held for Handle {
    #[inline]
    fn offset(&self) -> u64 {
        u64::from(self.allocation.offset)
    }

    #[inline]
    fn size(&self) -> u64 {
        u64::from(self.size)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.owner).free(self.allocation);
    }
}

impl Contender for CrateAllocator {
    const ID: ContenderId = ContenderId::OffsetAllocator;
    type Handle = Handle;

    fn create(space: Space) -> Result<Self, CreateError> {
        let refuse = |reason: &str| CreateError {
            contender: Self::ID,
            capacity: space.capacity,
            reason: reason.into(),
        };
        if space.capacity == 0 || space.capacity > CAPACITY_MAX {
            return Err(refuse("spaces are from one byte to 3.75 GiB, its largest bin"));
        }
        let max_nodes = u32::try_from(space.max_live.saturating_mul(2).saturating_add(2))
            .map_err(|_| refuse("node indices are 32 bits wide"))?;
        Ok(Self(Arc::new(Mutex::new(Allocator::with_max_allocs(space.capacity as u32, max_nodes)))))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Handle> {
        let size =
            u32::try_from(size).ok().filter(|&size| size > 0 && u64::from(size) <= CAPACITY_MAX)?;
        let allocation = lock(&self.0).allocate(size)?;
        Some(Handle { owner: self.0.clone(), allocation, size })
    }
}
