//! L1: bytes handed out by a cursor, and the arena of a process.

use std::ptr::{self, NonNull};

use kvmem::arena::{BumpArena, HeapMemory, Memory};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

mod concurrent;
mod edges;
mod process;
mod properties;
mod settings;
mod the_one;

fn arena(len: usize) -> BumpArena<HeapMemory> {
    BumpArena::new(HeapMemory::new(len, 4096).expect("a little memory"))
}

/// Addresses and nothing behind them: for arenas whose bytes nobody touches.
struct Reservation {
    mapped: NonNull<u8>,
    mapped_len: usize,
    skip: usize,
}

impl Reservation {
    /// `len` bytes, of which the first is `skip` bytes behind a multiple of a page.
    fn new(len: usize, skip: usize) -> Self {
        let mapped_len = len + skip;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the kernel likes.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, ProtFlags::empty(), flags) };
        Reservation {
            mapped: NonNull::new(mapped.expect("addresses are plenty").cast()).unwrap(),
            mapped_len,
            skip,
        }
    }
}

// SAFETY: the pages are the value's own.
unsafe impl Send for Reservation {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for Reservation {}

// SAFETY: fields that do not change, of a mapping that stays until `drop`. Nobody can use the
// bytes, so it is not `Exclusive`.
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
        // SAFETY: mapped by `new`, and nobody touches it.
        unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_len) }.expect("it is mapped");
    }
}
