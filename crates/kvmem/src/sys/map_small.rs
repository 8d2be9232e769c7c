//! *Anonymous mapping*: private zeroed pages, as the kernel gives them.

use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a base page.
pub(crate) fn page_len() -> usize {
    rustix::param::page_size()
}

/// Maps `len` bytes, readable and writable, private to this process. Nothing is resident yet; what the kernel knows that it
/// cannot have, it refuses now (no `MAP_NORESERVE`).
///
/// `len` is a multiple of [`page_len`] and not 0; else the kernel rounds it up, or says `EINVAL`.
pub(crate) fn map_anonymous(len: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: with a null hint and no `MAP_FIXED` the kernel chooses a range that was not mapped before, so nobody's
    // memory changes.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    // The kernel maps nothing at address 0 unless it was asked to.
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}

/// Unmaps `[base, base + len)`.
///
/// # Safety
///
/// The range is a whole number of pages that this process has mapped, and nobody uses it any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) }
}
