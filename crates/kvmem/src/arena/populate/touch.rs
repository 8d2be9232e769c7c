//! *Touching*: the calls that make pages resident, with an error where a store would kill the
//! process.

use std::ptr::NonNull;

use crate::arena::pages::address_at;
use crate::arena::{Call, Errno, PageSize};
use crate::sys;

/// Makes a range of one kind of pages resident. Kernels before 5.14 do not have
/// `MADV_POPULATE_WRITE`; there each page is touched.
pub(super) fn make_resident(
    at: NonNull<u8>,
    len: usize,
    page: PageSize,
    has_populate_write: bool,
) -> Result<(), (Call, Errno)> {
    if has_populate_write { populate_at_once(at, len) } else { touch(at, len, page) }
}

/// Repeats a call that the kernel interrupted, at most 100 times.
fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        match call() {
            Err(Errno::EINTR | Errno::EAGAIN) if tries < 100 => tries += 1,
            result => return result,
        }
    }
}

fn populate_at_once(at: NonNull<u8>, len: usize) -> Result<(), (Call, Errno)> {
    retry(|| sys::populate_write(at, len)).map_err(|errno| (Call::PopulateWrite, errno))
}

fn touch(at: NonNull<u8>, len: usize, page: PageSize) -> Result<(), (Call, Errno)> {
    let step = if page.is_pooled() { page.bytes() } else { sys::page_size() };
    for offset in (0..len).step_by(step) {
        retry(|| sys::touch(address_at(at, offset))).map_err(|errno| (Call::Touch, errno))?;
    }
    Ok(())
}

/// Returns the meaning of an error number here, and what to do.
pub(super) fn remedy(errno: Errno, page: PageSize) -> &'static str {
    match errno {
        Errno::EHWPOISON => {
            "a page has a hardware memory error and the kernel has taken it out of use: map the \
             region again"
        }
        Errno::EFAULT | Errno::ENOMEM if page.is_pooled() => {
            "the hugetlb pool, its cgroup or the bound NUMA nodes have no page left: reserve more, \
             or allow smaller pages"
        }
        Errno::EFAULT => {
            "a store there would kill the process, because the memory is not writable or none is \
             left: check the limits"
        }
        Errno::ENOMEM => {
            "the kernel has no memory of the requested kind: request less, or bind to more NUMA \
             nodes"
        }
        Errno::EINTR | Errno::EAGAIN => "the call was interrupted 100 times: try again",
        _ => "the kernel cannot make these pages resident: use ordinary writable memory",
    }
}
