//! The allocators without state: `malloc` and `free` of the C library, and those that a build with
//! the feature `allocators` has.

use std::ptr::{NonNull, null_mut};

use anyhow::Result;
use kvmem::slab::SlabAllocator;

use super::Heap;

/// The library's allocator, as its users hold it, with pages from the system.
pub(in crate::bench::slab) struct Kvmem(SlabAllocator);

impl Heap for Kvmem {
    fn create() -> Result<Self> {
        Ok(Self(SlabAllocator::new()?))
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

/// Defines a heap by the expressions of its two functions.
macro_rules! heap {
    ($(#[$attribute:meta])* $type:ident, $size:ident => $alloc:expr,
     ($block:ident, $free_size:ident) => $free:expr) => {
        $(#[$attribute])*
        pub(in crate::bench::slab) struct $type;

        $(#[$attribute])*
        impl Heap for $type {
            fn create() -> Result<Self> {
                Ok(Self)
            }

            #[inline]
            fn alloc(&self, $size: usize) -> *mut u8 {
                // SAFETY: any size is valid, and an alignment is a power of two.
                unsafe { $alloc }.cast()
            }

            #[inline]
            unsafe fn free(&self, $block: *mut u8, $free_size: usize) {
                // SAFETY: the caller guarantees that `alloc` returned the block for this size.
                unsafe { $free };
            }
        }
    };
}

/// The minimal alignment of every block.
#[cfg(feature = "allocators")]
const ALIGN: usize = 16;

heap!(System, size => libc::malloc(size), (block, _size) => libc::free(block.cast()));
heap!(
    #[cfg(feature = "allocators")]
    Mimalloc,
    size => libmimalloc_sys::mi_malloc(size),
    (block, _size) => libmimalloc_sys::mi_free(block.cast())
);
heap!(
    #[cfg(feature = "allocators")]
    Jemalloc,
    size => tikv_jemalloc_sys::malloc(size),
    (block, size) => tikv_jemalloc_sys::sdallocx(block.cast(), size, 0)
);
heap!(
    #[cfg(feature = "allocators")]
    Snmalloc,
    size => snmalloc_sys::sn_rust_alloc(ALIGN, size),
    (block, size) => snmalloc_sys::sn_rust_dealloc(block.cast(), ALIGN, size)
);
