//! *Nested*: whether this thread is inside of an allocator's own books.
//!
//! When slabs serve as the global allocator, the vectors and tables of this layer are asked of the
//! very allocator that is just changing them. Whoever changes books says so first; the global
//! allocator then passes requests of the same thread on to the system's. Addresses tell later whose
//! a block is.

use std::cell::Cell;

thread_local! {
    // Without a destructor and made in a constant: reading it allocates nothing, at any time in a thread's life.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, this thread is inside.
pub(crate) struct Inside {
    before: bool,
}

/// Says that this thread is inside from now on; it may have been before.
#[inline]
pub(crate) fn enter() -> Inside {
    Inside { before: INSIDE.replace(true) }
}

/// Whether this thread is inside.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}
