//! *Heap*: the allocators of memory that take part, each through its own C interface, so that
//! several live in one process and none stands in for Rust's own.
//!
//! | name | what it is |
//! |---|---|
//! | `kvmem` | the library's `SlabAllocator` |
//! | `malloc` | the C library's `malloc` and `free` |
//! | `mimalloc` | `mi_malloc` and `mi_free` |
//! | `jemalloc` | `malloc` and `sdallocx`, which is told the size, as `kvmem` and `g_slice` are |
//! | `snmalloc` | `sn_rust_alloc` and `sn_rust_dealloc`, which is told the size |
//! | `g-slice` | GLib's `g_slice_alloc` and `g_slice_free1`, where GLib still has its slab allocator |
//!
//! The C allocators are calls into objects that were compiled apart from the loop. That is how C
//! programs meet them; Rust's compiler cannot look into them, while it can into the library's.

mod g_slice;
#[cfg(feature = "allocators")]
mod jemalloc;
mod kvmem;
#[cfg(feature = "allocators")]
mod mimalloc;
#[cfg(feature = "allocators")]
mod snmalloc;
mod system;

use super::ContenderId;

/// Alignment that every block has at least.
#[cfg(feature = "allocators")]
const ALIGN: usize = 16;

/// An allocator of blocks of memory.
pub(super) trait Heap: Sync + Sized {
    /// The allocator, or in words why there is none.
    fn create() -> Result<Self, String>;

    /// A block of `size` bytes, or null.
    fn alloc(&self, size: usize) -> *mut u8;

    /// Takes a block back.
    ///
    /// # Safety
    /// `alloc` of the same heap returned `block` for the same `size`, and it was not freed since.
    unsafe fn free(&self, block: *mut u8, size: usize);
}

/// Code that is compiled once for each heap and picked by name.
pub(super) trait Visitor {
    /// What it returns.
    type Output;
    /// Runs with `heap`.
    fn visit<H: Heap>(self, heap: H) -> Self::Output;
}

/// Calls `visitor` with the heap behind `id`.
///
/// # Errors
/// Why it is absent, in words.
pub(super) fn visit<V: Visitor>(id: ContenderId, visitor: V) -> Result<V::Output, String> {
    Ok(match id {
        ContenderId::Kvmem => visitor.visit(kvmem::Kvmem::create()?),
        ContenderId::Malloc => visitor.visit(system::System::create()?),
        #[cfg(feature = "allocators")]
        ContenderId::Mimalloc => visitor.visit(mimalloc::Mimalloc::create()?),
        #[cfg(feature = "allocators")]
        ContenderId::Jemalloc => visitor.visit(jemalloc::Jemalloc::create()?),
        #[cfg(feature = "allocators")]
        ContenderId::Snmalloc => visitor.visit(snmalloc::Snmalloc::create()?),
        #[cfg(not(feature = "allocators"))]
        ContenderId::Mimalloc | ContenderId::Jemalloc | ContenderId::Snmalloc => {
            return Err("built without the feature `allocators`".to_owned());
        }
        ContenderId::GSlice => visitor.visit(g_slice::GSlice::create()?),
    })
}

/// Why the heap behind `id` is absent, if it is.
pub(super) fn absent(id: ContenderId) -> Option<String> {
    struct Present;
    impl Visitor for Present {
        type Output = ();
        fn visit<H: Heap>(self, _heap: H) {}
    }
    visit(id, Present).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Serves;
    impl Visitor for Serves {
        type Output = ();

        fn visit<H: Heap>(self, heap: H) {
            let mut blocks = Vec::new();
            for size in (1..=1024).chain([1, 512]) {
                let block = heap.alloc(size);
                assert!(!block.is_null() && block.addr() % 8 == 0, "{size} bytes at {block:?}");
                // SAFETY: the block is of that size, and nobody else's.
                unsafe { block.write_bytes(size as u8, size) };
                blocks.push((block, size));
            }
            for &(block, size) in &blocks {
                // SAFETY: as above, and all of it was written.
                let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                assert!(
                    bytes.iter().all(|&byte| byte == size as u8),
                    "a block of {size} bytes overlaps another"
                );
            }
            for (block, size) in blocks {
                // SAFETY: allocated above with that size, and freed only here.
                unsafe { heap.free(block, size) };
            }
        }
    }

    #[test]
    fn every_heap_serves_blocks_of_its_own() {
        for id in ContenderId::ALL {
            if let Err(reason) = visit(id, Serves) {
                println!("skipped: {id}: {reason}");
                assert!(!matches!(id, ContenderId::Malloc), "every system has one");
            }
            assert_eq!(absent(id), visit(id, Serves).err());
        }
    }
}
