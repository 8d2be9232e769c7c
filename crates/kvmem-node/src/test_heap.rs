//! *Heap*: counts what a thread allocates, for tests of bounds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// Returns the bytes that this thread has allocated, less those that it has freed.
pub(crate) fn bytes_of_thread() -> isize {
    BYTES.with(Cell::get)
}

fn count(bytes: isize) {
    // A thread that ends frees without a count.
    let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes));
}

// SAFETY: every call is one of the system's allocator, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's conditions are those of the call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's conditions are those of the call.
        unsafe { System.dealloc(at, layout) }
    }
}
