//! mimalloc through its C interface.

use super::Heap;

/// `mi_malloc` and `mi_free`.
pub(super) struct Mimalloc;

impl Heap for Mimalloc {
    fn create() -> Result<Self, String> {
        Ok(Self)
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: any size is valid.
        unsafe { libmimalloc_sys::mi_malloc(size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, _size: usize) {
        // SAFETY: the caller guarantees that `mi_malloc` returned the block.
        unsafe { libmimalloc_sys::mi_free(block.cast()) }
    }
}
