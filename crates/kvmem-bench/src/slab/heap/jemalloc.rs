//! *Jemalloc*: through its C interface, whose names bear a prefix here.

use super::Heap;

/// `malloc` and `sdallocx`, its fast way to free a block of known size.
pub(super) struct Jemalloc;

impl Heap for Jemalloc {
    fn create() -> Result<Self, String> {
        Ok(Self)
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: any size may be asked for.
        unsafe { tikv_jemalloc_sys::malloc(size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) {
        // SAFETY: its `malloc` returned the block for that size, says the caller.
        unsafe { tikv_jemalloc_sys::sdallocx(block.cast(), size, 0) }
    }
}
