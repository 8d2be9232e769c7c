//! The C library's allocator.

use super::Heap;

/// `malloc` and `free`.
pub(super) struct System;

impl Heap for System {
    fn create() -> Result<Self, String> {
        Ok(Self)
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: any size is valid.
        unsafe { libc::malloc(size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, _size: usize) {
        // SAFETY: the caller guarantees that `malloc` returned the block.
        unsafe { libc::free(block.cast()) }
    }
}
