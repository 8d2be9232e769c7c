//! The library's allocator, as its users hold it.

use std::ptr::{NonNull, null_mut};

use kvmem::slab::SlabAllocator;

use super::Heap;

/// `SlabAllocator` with pages from the system.
pub(super) struct Kvmem(SlabAllocator);

impl Heap for Kvmem {
    fn create() -> Result<Self, String> {
        SlabAllocator::new().map(Self).map_err(|error| error.to_string())
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        self.0.allocate(size).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) {
        if let Some(block) = NonNull::new(block) {
            // SAFETY: the caller guarantees that `alloc` returned the block for this size.
            unsafe { self.0.free(block, size) }
        }
    }
}
