//! *Reentrancy*: whether this thread is inside an allocator's own metadata.
//!
//! When slabs serve as the global allocator, the vectors and tables of this layer are allocated
//! from the very allocator that is changing them. Code that changes metadata therefore marks the
//! thread first; the global allocator then passes requests of that thread to the system's
//! allocator. A block's address later shows which of the two it came from.

use std::cell::Cell;

thread_local! {
    // No destructor and a constant initializer: reading it allocates nothing, at any time in a
    // thread's life.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside until it is dropped.
pub(crate) struct ReentrancyGuard {
    before: bool,
}

/// Marks this thread as inside. Calls may nest.
#[inline]
pub(crate) fn enter() -> ReentrancyGuard {
    ReentrancyGuard { before: INSIDE.replace(true) }
}

/// Returns whether this thread is inside.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

impl Drop for ReentrancyGuard {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}
