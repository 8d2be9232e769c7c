//! L1: the bump arena and the process arena.

use std::ptr::{self, NonNull};

use kvmem::arena::{BumpArena, BumpStats, HeapMemory, Memory};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

mod chunks;
mod concurrent;
mod edges;
mod process;
mod process_wide;
mod properties;
mod settings;

fn arena(len: usize) -> BumpArena<HeapMemory> {
    BumpArena::new(HeapMemory::new(len, 4096).expect("a little memory"))
}

/// Returns the capacity, the used and the remaining bytes.
fn figures(stats: BumpStats) -> (usize, usize, usize) {
    (stats.capacity, stats.used, stats.remaining)
}

/// Reserved addresses without memory, for arenas whose bytes are never touched.
struct Reservation {
    mapped: NonNull<u8>,
    mapped_len: usize,
    skip: usize,
}

impl Reservation {
    /// Reserves `len` bytes, the first of them `skip` bytes after a page boundary.
    fn new(len: usize, skip: usize) -> Self {
        let mapped_len = len + skip;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, ProtFlags::empty(), flags) };
        Reservation {
            mapped: NonNull::new(mapped.expect("enough addresses").cast()).unwrap(),
            mapped_len,
            skip,
        }
    }
}

// SAFETY: the value owns its pages.
unsafe impl Send for Reservation {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for Reservation {}

// SAFETY: the fields do not change, and the mapping stays until `drop`. The bytes are not
// accessible, so the type is not `Exclusive`.
unsafe impl Memory for Reservation {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: `skip` is within the mapping.
        unsafe { self.mapped.add(self.skip) }
    }

    fn len(&self) -> usize {
        self.mapped_len - self.skip
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and no code touches it.
        unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_len) }.expect("it is mapped");
    }
}
