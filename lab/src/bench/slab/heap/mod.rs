//! The memory allocators that take part. Each is called through its own C interface, so several
//! live in one process and none replaces Rust's global allocator.
//!
//! | name | functions |
//! |---|---|
//! | `kvmem` | the library's `SlabAllocator` |
//! | `malloc` | the C library's `malloc` and `free` |
//! | `mimalloc` | `mi_malloc` and `mi_free` |
//! | `jemalloc` | `malloc` and `sdallocx`, which receives the size, as `kvmem` and `g_slice` do |
//! | `snmalloc` | `sn_rust_alloc` and `sn_rust_dealloc`, which receives the size |
//! | `g-slice` | GLib's `g_slice_alloc` and `g_slice_free1`, if GLib still has its slab allocator |
//!
//! Calls of the C allocators go into separately compiled objects, as in C programs. Rust's compiler
//! cannot inline them, while it can inline the library's.

pub(super) mod g_slice;
pub(super) mod system;

use anyhow::Result;

/// An allocator of memory blocks.
pub(super) trait Heap: Sync + Sized {
    /// Creates the allocator, or returns why it is absent.
    fn create() -> Result<Self>;

    /// Allocates a block of `size` bytes; null if memory runs out.
    fn alloc(&self, size: usize) -> *mut u8;

    /// Frees a block.
    ///
    /// # Safety
    /// `alloc` of the same heap returned `block` for the same `size`, and it is not freed yet.
    unsafe fn free(&self, block: *mut u8, size: usize);
}

/// Evaluates an expression with the heap that a [`SlabContenderId`](super::SlabContenderId) names:
/// it is compiled once for each heap. The error is the reason why the heap is absent.
macro_rules! with_heap {
    ($id:expr, $heap:ident => $body:expr) => {
        (|| {
            use $crate::bench::slab::SlabContenderId as Id;
            use $crate::bench::slab::heap::{Heap, g_slice, system};
            anyhow::Ok(match $id {
                Id::Kvmem => {
                    let $heap = system::Kvmem::create()?;
                    $body
                }
                Id::Malloc => {
                    let $heap = system::System::create()?;
                    $body
                }
                #[cfg(feature = "allocators")]
                Id::Mimalloc => {
                    let $heap = system::Mimalloc::create()?;
                    $body
                }
                #[cfg(feature = "allocators")]
                Id::Jemalloc => {
                    let $heap = system::Jemalloc::create()?;
                    $body
                }
                #[cfg(feature = "allocators")]
                Id::Snmalloc => {
                    let $heap = system::Snmalloc::create()?;
                    $body
                }
                #[cfg(not(feature = "allocators"))]
                Id::Mimalloc | Id::Jemalloc | Id::Snmalloc => {
                    anyhow::bail!("needs `--features allocators`, C++ and CMake")
                }
                Id::GSlice => {
                    let $heap = g_slice::GSlice::create()?;
                    $body
                }
            })
        })()
    };
}

pub(super) use with_heap;
