//! jemalloc through its C interface, whose names have a prefix in this build.

use super::Heap;

/// `malloc` and `sdallocx`, the fast way to free a block of known size.
pub(super) struct Jemalloc;

impl Heap for Jemalloc {
    fn create() -> Result<Self, String> {
        Ok(Self)
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: any size is valid.
        unsafe { tikv_jemalloc_sys::malloc(size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) {
        // SAFETY: the caller guarantees that this `malloc` returned the block for this size.
        unsafe { tikv_jemalloc_sys::sdallocx(block.cast(), size, 0) }
    }
}
