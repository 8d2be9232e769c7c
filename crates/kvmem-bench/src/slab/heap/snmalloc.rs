//! *Snmalloc*: through the interface that it has for Rust, which tells it sizes.

use super::{ALIGN, Heap};

/// `sn_rust_alloc` and `sn_rust_dealloc`.
pub(super) struct Snmalloc;

impl Heap for Snmalloc {
    fn create() -> Result<Self, String> {
        Ok(Self)
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: the alignment is a power of two, and any size may be asked for.
        unsafe { snmalloc_sys::sn_rust_alloc(ALIGN, size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) {
        // SAFETY: `sn_rust_alloc` returned the block for that size and alignment, says the caller.
        unsafe {
            snmalloc_sys::sn_rust_dealloc(block.cast(), ALIGN, size);
        }
    }
}
