//! *Ring calls*: makes an io_uring, and changes its table of fixed buffers.
//!
//! Registering needs only two system calls: the queues of the ring are never mapped, and no work is
//! submitted.
//!
//! Source: the kernel's `include/uapi/linux/io_uring.h` and `io_uring_register(2)`.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use super::call::Call;
use super::errno::Errno;
use super::errno::{Result, check};
use super::gate::gate;

const REGISTER_BUFFERS2: u32 = 15;
const REGISTER_BUFFERS_UPDATE: u32 = 16;
const REGISTER_CLONE_BUFFERS: u32 = 30;
/// All slots of the table are empty.
const SPARSE: u32 = 1;
/// Keeps the existing buffers of the destination, except in the slots that are cloned into.
const REPLACE: u32 = 2;

/// `struct io_uring_params`, all zero.
type Params = [u64; 15];

/// `struct io_uring_rsrc_register`.
#[repr(C)]
struct Register {
    slots: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
struct Update {
    first: u32,
    reserved: u32,
    data: u64,
    tags: u64,
    slots: u32,
    reserved2: u32,
}

/// `struct io_uring_clone_buffers`.
#[repr(C)]
struct CloneBuffers {
    source: RawFd,
    flags: u32,
    from: u32,
    to: u32,
    slots: u32,
    padding: [u32; 3],
}

/// Makes a ring with queues for `entries`, closed on exec.
pub(crate) fn ring_setup(entries: u32) -> Result<OwnedFd> {
    gate(Call::IoUringSetup)?;
    let mut params: Params = [0; 15];
    // SAFETY: the kernel reads and writes only these 120 bytes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, params.as_mut_ptr()) };
    let ring = RawFd::try_from(check(ring)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the descriptor was made just now; no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(ring) })
}

/// Returns whether this process may make an io_uring, by requesting one that is impossible.
pub(crate) fn io_uring_allowed() -> Result<()> {
    match ring_setup(0) {
        // A ring without entries is invalid. The kernel says so only after every permission check
        // has passed.
        Ok(_) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Calls `io_uring_register`.
///
/// # Safety
/// `argument` has the type that `operation` reads, and the caller may register what it names.
unsafe fn register<T>(
    ring: BorrowedFd<'_>,
    operation: u32,
    argument: &T,
    count: usize,
) -> Result<usize> {
    let argument = ptr::from_ref(argument);
    // SAFETY: `argument` is a live reference to the type that the operation reads, by this
    // function's condition, which also covers the memory that it names. The kernel writes nothing
    // through it.
    check(unsafe {
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), operation, argument, count)
    })
}

/// Gives a ring a table of `slots` empty slots; fails with `EBUSY` if it has a table. Linux 5.19.
pub(crate) fn ring_table(ring: BorrowedFd<'_>, slots: u32) -> Result<()> {
    gate(Call::RingTable)?;
    let table = Register { slots, flags: SPARSE, reserved: 0, data: 0, tags: 0 };
    // SAFETY: the operation reads a `struct io_uring_rsrc_register` of this size, which names
    // no memory.
    unsafe { register(ring, REGISTER_BUFFERS2, &table, size_of::<Register>()) }.map(drop)
}

/// Puts one buffer into each slot from `first` on; an empty vector empties its slot.
///
/// # Safety
/// The conditions of [`ring_fill`] hold for each vector.
unsafe fn update(ring: BorrowedFd<'_>, first: u32, vectors: &[libc::iovec]) -> Result<()> {
    let slots = u32::try_from(vectors.len()).map_err(|_| Errno::EINVAL)?;
    let data = vectors.as_ptr() as u64;
    let update = Update { first, reserved: 0, data, tags: 0, slots, reserved2: 0 };
    // SAFETY: the operation reads a `struct io_uring_rsrc_update2` of this size, which names
    // vectors and their number; the caller is responsible for the memory that they name.
    let done = unsafe { register(ring, REGISTER_BUFFERS_UPDATE, &update, size_of::<Update>()) }?;
    // The kernel stops at the first failure, and then returns the number of completed slots.
    if done == vectors.len() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Pins a range and puts it into a slot of the table; a previous buffer is removed.
///
/// # Safety
/// Code that submits work on this slot is responsible for its effect on the bytes. The bytes stay
/// mapped until the slot is emptied.
pub(crate) unsafe fn ring_fill(
    ring: BorrowedFd<'_>,
    slot: u32,
    at: NonNull<u8>,
    len: usize,
) -> Result<()> {
    gate(Call::RingFill)?;
    // SAFETY: `update` demands for each vector what this function demands for its range.
    unsafe { update(ring, slot, &[libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len }]) }
}

/// Empties slots of the table. The kernel unpins a buffer after the last request that uses it.
pub(crate) fn ring_empty(ring: BorrowedFd<'_>, slots: Range<u32>) -> Result<()> {
    gate(Call::RingEmpty)?;
    let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    // SAFETY: the vectors name no memory.
    unsafe { update(ring, slots.start, &vec![none; slots.len()]) }
}

/// Copies the buffer in slot `from` of `source`, which is pinned already, to slot `to` of `ring`,
/// and extends a table that ends before `to`. Linux 6.13. Before the fix in Linux 6.18, the buffers
/// in the slots after `to` are not copied.
pub(crate) fn ring_clone(
    ring: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    from: u32,
    to: u32,
) -> Result<()> {
    gate(Call::RingClone)?;
    let source = source.as_raw_fd();
    let clone = CloneBuffers { source, flags: REPLACE, from, to, slots: 1, padding: [0; 3] };
    // SAFETY: the operation reads a `struct io_uring_clone_buffers`; it names no memory.
    unsafe { register(ring, REGISTER_CLONE_BUFFERS, &clone, 1) }.map(drop)
}
