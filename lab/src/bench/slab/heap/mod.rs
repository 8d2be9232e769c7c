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

mod g_slice;
mod system;

use super::SlabContenderId;

/// An allocator of memory blocks.
pub(super) trait Heap: Sync + Sized {
    /// Creates the allocator, or returns why it is absent.
    fn create() -> Result<Self, String>;

    /// Allocates a block of `size` bytes; null if memory runs out.
    fn alloc(&self, size: usize) -> *mut u8;

    /// Frees a block.
    ///
    /// # Safety
    /// `alloc` of the same heap returned `block` for the same `size`, and it is not freed yet.
    unsafe fn free(&self, block: *mut u8, size: usize);
}

/// Code that is compiled once for each heap and selected by name.
pub(super) trait HeapVisitor {
    /// The result.
    type Output;
    /// Runs with `heap`.
    fn visit<H: Heap>(self, heap: H) -> Self::Output;
}

/// Calls `visitor` with the heap that `id` names.
///
/// # Errors
/// The reason why the heap is absent.
pub(super) fn visit<V: HeapVisitor>(id: SlabContenderId, visitor: V) -> Result<V::Output, String> {
    Ok(match id {
        SlabContenderId::Kvmem => visitor.visit(system::Kvmem::create()?),
        SlabContenderId::Malloc => visitor.visit(system::System::create()?),
        #[cfg(feature = "allocators")]
        SlabContenderId::Mimalloc => visitor.visit(system::Mimalloc::create()?),
        #[cfg(feature = "allocators")]
        SlabContenderId::Jemalloc => visitor.visit(system::Jemalloc::create()?),
        #[cfg(feature = "allocators")]
        SlabContenderId::Snmalloc => visitor.visit(system::Snmalloc::create()?),
        #[cfg(not(feature = "allocators"))]
        SlabContenderId::Mimalloc | SlabContenderId::Jemalloc | SlabContenderId::Snmalloc => {
            return Err("needs `--features allocators`, C++ and CMake".to_owned());
        }
        SlabContenderId::GSlice => visitor.visit(g_slice::GSlice::create()?),
    })
}

/// Returns why the heap that `id` names is absent, if it is.
pub(super) fn absent(id: SlabContenderId) -> Option<String> {
    struct Presence;
    impl HeapVisitor for Presence {
        type Output = ();
        fn visit<H: Heap>(self, _heap: H) {}
    }
    visit(id, Presence).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Serves;
    impl HeapVisitor for Serves {
        type Output = ();

        fn visit<H: Heap>(self, heap: H) {
            let mut blocks = Vec::new();
            for size in (1..=1024).chain([1, 512]) {
                let block = heap.alloc(size);
                assert!(!block.is_null() && block.addr() % 8 == 0, "{size} bytes at {block:?}");
                // SAFETY: the block has that size, and only this test uses it.
                unsafe { block.write_bytes(size as u8, size) };
                blocks.push((block, size));
            }
            for &(block, size) in &blocks {
                // SAFETY: the block has that size, and all of it was written.
                let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                assert!(
                    bytes.iter().all(|&byte| byte == size as u8),
                    "a block of {size} bytes overlaps another"
                );
            }
            for (block, size) in blocks {
                // SAFETY: the heap allocated it with that size, and it is freed only here.
                unsafe { heap.free(block, size) };
            }
        }
    }

    #[test]
    fn every_heap_serves_blocks_of_its_own() {
        for id in SlabContenderId::ALL {
            if let Err(reason) = visit(id, Serves) {
                println!("skipped: {id}: {reason}");
                assert!(!matches!(id, SlabContenderId::Malloc), "every system has one");
            }
            assert_eq!(absent(id), visit(id, Serves).err());
        }
    }
}
