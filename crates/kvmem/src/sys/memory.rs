//! *Memory calls*: addresses, what is behind them, and what is resident.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use super::{Call, Errno, Result, check, gate};

/// The size of a base page in bytes.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: reads a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// `mmap`, as all of them below call it.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, what was mapped in the range before is the caller's, and nobody
/// uses it any more.
unsafe fn mmap(
    address: *mut u8,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<NonNull<u8>> {
    // SAFETY: without MAP_FIXED the kernel takes addresses that nobody has; with it, the caller
    // answers for them.
    let at = unsafe { libc::mmap(address.cast(), len, protection, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(at.cast()).ok_or(Errno::EINVAL)
}

/// Reserves addresses for `len` bytes, without access and without any promise of memory.
pub(crate) fn reserve(len: usize) -> Result<NonNull<u8>> {
    gate(Call::Reserve)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED.
    unsafe { mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) }
}

/// Reserves the range anew if nothing is mapped in it any more; what is mapped stays.
pub(crate) fn refill(at: NonNull<u8>, len: usize) {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing. A kernel that does not know it takes the
    // address as a hint.
    let got = unsafe { mmap(at.as_ptr(), len, libc::PROT_NONE, flags, -1, 0) };
    if let Ok(elsewhere) = got
        && elsewhere != at
    {
        // SAFETY: this range was made just now and nobody else knows of it.
        let _ = unsafe { libc::munmap(elsewhere.as_ptr().cast(), len) };
    }
}

/// Maps private base pages, zeroed and not resident yet, without a promise of memory. The kernel
/// chooses the address.
pub(crate) fn map_anonymous(len: usize) -> Result<NonNull<u8>> {
    gate(Call::MapAnonymous)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED.
    unsafe { mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
}

/// Maps private hugepages of `2^page_shift` bytes, which the pool promises from now on: a later
/// touch finds its page. `None` lets the kernel choose the address.
///
/// # Safety
/// As for `mmap` with `MAP_FIXED`, if an address is given.
pub(crate) unsafe fn map_huge(
    at: Option<NonNull<u8>>,
    len: usize,
    page_shift: u32,
) -> Result<NonNull<u8>> {
    gate(Call::MapHuge)?;
    let size = (page_shift << libc::MAP_HUGE_SHIFT) as i32;
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size | fixed;
    // SAFETY: passed on to the caller.
    unsafe {
        mmap(
            at.map_or(ptr::null_mut(), NonNull::as_ptr),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    }
}

/// Maps the first `len` bytes of a file, shared, to be read and, if `write` says so, written.
/// `None` lets the kernel choose the address.
///
/// # Safety
/// As for `mmap` with `MAP_FIXED`, if an address is given.
pub(crate) unsafe fn map_file(
    at: Option<NonNull<u8>>,
    len: usize,
    file: &File,
    write: bool,
) -> Result<NonNull<u8>> {
    gate(Call::MapFile)?;
    let access = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: passed on to the caller.
    unsafe {
        mmap(
            at.map_or(ptr::null_mut(), NonNull::as_ptr),
            len,
            access,
            libc::MAP_SHARED | fixed,
            file.as_raw_fd(),
            0,
        )
    }
}

/// Opens a reserved range for reading and writing.
///
/// # Safety
/// The range is the caller's.
pub(crate) unsafe fn protect(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Protect)?;
    // SAFETY: access is only widened, in a range of the caller's.
    let returned =
        unsafe { libc::mprotect(at.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE) };
    check(returned.into()).map(drop)
}

/// Gives a range of addresses back.
///
/// # Safety
/// The range is the caller's and nobody uses it any more.
pub(crate) unsafe fn munmap(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Unmap)?;
    // SAFETY: the caller's promise.
    check(unsafe { libc::munmap(at.as_ptr().cast(), len) }.into()).map(drop)
}

/// Gives advice about a range.
///
/// # Safety
/// The range is the caller's; for advice that drops its contents, nobody relies on them.
pub(crate) unsafe fn madvise(at: NonNull<u8>, len: usize, advice: i32) -> Result<()> {
    gate(Call::Advise)?;
    // SAFETY: the caller's promise.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, advice) }.into()).map(drop)
}

/// Makes a range resident and writable, as if each of its pages had been written to, without
/// changing a byte. A page that cannot be had is an error here, and not a signal. The range need
/// not be mapped: that is an error too.
///
/// Source: `madvise(2)`, `MADV_POPULATE_WRITE`, Linux 5.14.
pub(crate) fn populate_write(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::PopulateWrite)?;
    // SAFETY: changes no byte of any mapping.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) }.into())
        .map(drop)
}

/// Whether the kernel has [`populate_write`]: asked with an empty range, which only an unknown
/// advice fails.
pub(crate) fn populate_is_known() -> bool {
    match gate(Call::PopulateWrite) {
        Err(errno) => errno != Errno::EINVAL,
        // SAFETY: the range is empty.
        Ok(()) => unsafe { libc::madvise(ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0 },
    }
}

/// Makes the page of `at` resident and writable without changing a byte, on any kernel: the kernel
/// itself adds 0 to the word, atomically, so that threads that write to it meanwhile lose nothing.
/// A page that cannot be had is an error here, and not a signal.
///
/// Source: `futex(2)`, `FUTEX_WAKE_OP`: the operation is done on the second address, whether or not
/// anybody waits.
pub(crate) fn touch(at: NonNull<u8>) -> Result<()> {
    gate(Call::Touch)?;
    // Operation ADD of 0; the comparison after it decides about waking up to 0 waiters.
    let add_zero = libc::FUTEX_OP(libc::FUTEX_OP_ADD, 0, libc::FUTEX_OP_CMP_EQ, 0);
    // SAFETY: the kernel checks the address, and changes no byte.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_futex,
            at.as_ptr(),
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0usize,
            at.as_ptr(),
            add_zero,
        )
    };
    check(returned).map(drop)
}

/// Makes a range resident and keeps it so. All pages that it touches are locked; those that were
/// stay so, and locks do not add up. An error can leave a part of them locked.
pub(crate) fn mlock(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Lock)?;
    // SAFETY: changes no byte, and the kernel checks the range.
    check(unsafe { libc::mlock(at.as_ptr().cast(), len) }.into()).map(drop)
}

/// Lets go of all pages that a range touches, however often they were locked.
pub(crate) fn munlock(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Unlock)?;
    // SAFETY: changes no byte, and the kernel checks the range.
    check(unsafe { libc::munlock(at.as_ptr().cast(), len) }.into()).map(drop)
}

/// Asks for each page of a range whether it is resident: bit 0 of its byte in `pages`. The range
/// must be mapped whole.
pub(crate) fn mincore(at: NonNull<u8>, len: usize, pages: &mut [u8]) -> Result<()> {
    gate(Call::Mincore)?;
    if pages.len() < len.div_ceil(page_size()) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the vector has a byte for each page, and the kernel checks the range.
    check(unsafe { libc::mincore(at.as_ptr().cast(), len, pages.as_mut_ptr()) }.into()).map(drop)
}
