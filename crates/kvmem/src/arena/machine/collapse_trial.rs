//! *Trial*: whether the kernel collapses shared memory into a transparent hugepage. Settings and
//! the kernel's version do not show it: a kernel may be built without it.

use std::ptr::NonNull;

use crate::arena::PageSize;
use crate::sys::{self, Result};

/// Collapses one block of shared memory, and releases it. Returns the kernel's answer; `None` if
/// there is no memory to try it with.
///
/// The memory has no file: a memfd would end the process where `RLIMIT_FSIZE` is small. A memory
/// cgroup without room fails the collapse, and no process is killed: the kernel does not reclaim
/// for it.
pub(super) fn collapse_trial() -> Option<Result<()>> {
    let block = PageSize::Thp.bytes();
    let range = Reserved::new(2 * block).ok()?;
    let first = range.at.addr().get().next_multiple_of(block) - range.at.addr().get();
    // SAFETY: the reservation has two blocks, so a whole one follows the first boundary in it.
    let at = unsafe { range.at.add(first) };
    // SAFETY: the block is a part of the reservation, which only this function knows.
    unsafe { sys::map_shared(at, block) }.ok()?;
    // Kernels without this request cannot collapse either, and say so below.
    if sys::has_populate_write() {
        sys::populate_write(at, sys::page_size()).ok()?;
    }
    // SAFETY: the range was mapped just now, and no pointer or reference to its bytes exists.
    Some(unsafe { sys::madvise(at, block, libc::MADV_COLLAPSE) })
}

/// A range of addresses that is unmapped when it is dropped.
struct Reserved {
    at: NonNull<u8>,
    len: usize,
}

impl Reserved {
    fn new(len: usize) -> Result<Reserved> {
        Ok(Reserved { at: sys::reserve(len)?, len })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the range was reserved in `new`, and its address does not leave this module. If
        // the call fails, the range stays mapped and is not used again.
        let _ = unsafe { sys::munmap(self.at, self.len) };
    }
}
