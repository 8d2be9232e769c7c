//! The crate `bumpalo`, used by one thread. It bumps downwards, without atomic operations.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::Bump;
use crate::bench::arena::ArenaMeasureError;

/// One chunk of the crate's arena. The allocation limit keeps it from getting another.
#[derive(Debug)]
pub struct Bumpalo(bumpalo::Bump);

impl Bump for Bumpalo {
    fn create(capacity: usize) -> Result<Self, ArenaMeasureError> {
        let arena = bumpalo::Bump::try_with_capacity(capacity)
            .map_err(|_| ArenaMeasureError::NoChunk { capacity })?;
        arena.set_allocation_limit(Some(arena.allocated_bytes()));
        Ok(Self(arena))
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.try_alloc_layout(Layout::from_size_align(size, align).ok()?).ok()
    }
}
