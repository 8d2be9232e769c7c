//! snmalloc through its interface for Rust, which passes sizes.

use super::{ALIGN, Heap};

/// `sn_rust_alloc` and `sn_rust_dealloc`.
pub(super) struct Snmalloc;

impl Heap for Snmalloc {
    fn create() -> Result<Self, String> {
        Ok(Self)
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: the alignment is a power of two, and any size is valid.
        unsafe { snmalloc_sys::sn_rust_alloc(ALIGN, size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) {
        // SAFETY: the caller guarantees that `sn_rust_alloc` returned the block for this size and
        // alignment.
        unsafe {
            snmalloc_sys::sn_rust_dealloc(block.cast(), ALIGN, size);
        }
    }
}
