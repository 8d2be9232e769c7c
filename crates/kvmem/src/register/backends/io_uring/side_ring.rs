//! *Side ring*: a ring with one slot, in which pages are pinned without a search. The head of the
//! folder explains why.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::register::backends::retry::retry;
use crate::sys::{self, Call, Errno};

/// Success, or the call that failed.
pub(super) type Filled = Result<(), (Call, Errno)>;

/// The side ring of a ring.
pub(super) struct SideRing {
    /// `None`: buffers are registered in the table itself.
    ring: Option<OwnedFd>,
    /// The current number of slots of the main ring's table.
    table: u32,
}

impl SideRing {
    /// Creates a side ring for `ring`, whose table has `table` slots, all empty. If the kernel does
    /// not support it, returns [`SideRing::none`].
    pub(super) fn new(ring: BorrowedFd<'_>, table: u32) -> SideRing {
        let side = one_slot().filter(|side| {
            // An empty slot, to see whether the kernel clones single slots.
            retry(|| sys::ring_clone(ring, side.as_fd(), 0, 0)).is_ok()
        });
        SideRing { ring: side, table }
    }

    /// Returns no side ring, for a table of `table` slots.
    pub(super) fn none(table: u32) -> SideRing {
        SideRing { ring: None, table }
    }

    /// Returns the ring, if there is one.
    pub(super) fn ring(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// Returns the current number of slots of the main ring's table.
    pub(super) fn table(&self) -> u32 {
        self.table
    }

    /// Moves the side ring's buffer into a slot of the main ring. If the side ring cannot be
    /// emptied and no other can be created, there is none afterwards.
    pub(super) fn move_into(&mut self, main: BorrowedFd<'_>, slot: u32) -> Filled {
        let Some(side) = self.ring.as_ref().map(AsFd::as_fd) else { return Ok(()) };
        let cloned = retry(|| sys::ring_clone(main, side, 0, slot));
        if cloned.is_ok() {
            self.table = self.table.max(slot + 1);
        }
        if retry(|| sys::ring_empty(side, 0..1)).is_err() {
            // The side ring would keep the pages pinned. Closing it unpins them a moment later.
            self.ring = one_slot();
        }
        cloned.map_err(|errno| (Call::RingClone, errno))
    }
}

/// Creates a ring with one slot.
fn one_slot() -> Option<OwnedFd> {
    let ring = retry(|| sys::ring_setup(1)).ok()?;
    retry(|| sys::ring_table(ring.as_fd(), 1)).ok()?;
    Some(ring)
}

/// Pins a range into a slot of a ring.
///
/// # Safety
/// The conditions of [`Registrar::register`](crate::register::Registrar::register), until the slot
/// is empty.
pub(super) unsafe fn pin(ring: BorrowedFd<'_>, slot: u32, at: NonNull<u8>, len: usize) -> Filled {
    // SAFETY: the caller promises that the bytes are mapped for reading and writing, and stay
    // mapped at the same pages until the slot is empty; that is all that `ring_fill` requires.
    retry(|| unsafe { sys::ring_fill(ring, slot, at, len) })
        .map_err(|errno| (Call::RingFill, errno))
}
