//! *Memory calls*: addresses, mappings and residency.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use super::call::Call;
use super::errno::Errno;
use super::errno::{Result, check};
use super::gate::gate;

/// Returns the size of a base page in bytes.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: reads a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// Calls `mmap`.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, the caller owns everything that was mapped in the range, and no
/// code uses it any more.
unsafe fn mmap(
    address: *mut u8,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<NonNull<u8>> {
    // SAFETY: without MAP_FIXED the kernel chooses free addresses. With it, no code uses what was
    // mapped there, by this function's condition, so no pointer or reference becomes invalid.
    let at = unsafe { libc::mmap(address.cast(), len, protection, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(at.cast()).ok_or(Errno::EINVAL)
}

/// Reserves addresses for `len` bytes, without access and without a commitment of memory.
pub(crate) fn reserve(len: usize) -> Result<NonNull<u8>> {
    gate(Call::Reserve)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: MAP_FIXED is not set.
    unsafe { mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) }
}

/// Reserves the range again if nothing is mapped in it; existing mappings stay.
pub(crate) fn refill(at: NonNull<u8>, len: usize) {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing. A kernel without that flag treats the address
    // as a hint.
    let got = unsafe { mmap(at.as_ptr(), len, libc::PROT_NONE, flags, -1, 0) };
    if let Ok(other) = got
        && other != at
    {
        // SAFETY: this range was mapped just now, and no other code knows it.
        let _ = unsafe { libc::munmap(other.as_ptr().cast(), len) };
    }
}

/// Maps private base pages, zeroed and not resident yet, without a commitment of memory. The kernel
/// chooses the address.
pub(crate) fn map_anonymous(len: usize) -> Result<NonNull<u8>> {
    gate(Call::MapAnonymous)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: MAP_FIXED is not set.
    unsafe { mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
}

/// Maps private hugepages of `2^page_shift` bytes. The hugetlb pool reserves them, so a later touch
/// finds its page. With `None`, the kernel chooses the address.
///
/// # Safety
/// If an address is passed, the caller owns everything that was mapped in the range, and no code
/// uses it any more.
pub(crate) unsafe fn map_huge(
    at: Option<NonNull<u8>>,
    len: usize,
    page_shift: u32,
) -> Result<NonNull<u8>> {
    gate(Call::MapHuge)?;
    let size = (page_shift << libc::MAP_HUGE_SHIFT) as i32;
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size | fixed;
    // SAFETY: `mmap` demands for a fixed address what this function demands: the range is the
    // caller's, and no code uses it.
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

/// Maps the first `len` bytes of a file, shared, for reading and, with `write`, for writing. With
/// `None`, the kernel chooses the address.
///
/// # Safety
/// If an address is passed, the caller owns everything that was mapped in the range, and no code
/// uses it any more.
pub(crate) unsafe fn map_file(
    at: Option<NonNull<u8>>,
    len: usize,
    file: &File,
    write: bool,
) -> Result<NonNull<u8>> {
    gate(Call::MapFile)?;
    let access = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: `mmap` demands for a fixed address what this function demands: the range is the
    // caller's, and no code uses it.
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

/// Maps shared memory without a name over a range.
///
/// # Safety
/// The caller owns everything that was mapped in the range, and no code uses it any more.
pub(crate) unsafe fn map_shared(at: NonNull<u8>, len: usize) -> Result<NonNull<u8>> {
    gate(Call::MapFile)?;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: `mmap` demands for a fixed address what this function demands: the range is the
    // caller's, and no code uses it.
    unsafe { mmap(at.as_ptr(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
}

/// Makes a reserved range readable and writable.
///
/// # Safety
/// The caller owns the range.
pub(crate) unsafe fn protect(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Protect)?;
    // SAFETY: access is only widened, which invalidates no pointer, in a range that is the caller's
    // by this function's condition.
    let returned =
        unsafe { libc::mprotect(at.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE) };
    check(returned.into()).map(drop)
}

/// Unmaps a range of addresses.
///
/// # Safety
/// The caller owns the range, and no code uses it any more.
pub(crate) unsafe fn munmap(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Unmap)?;
    // SAFETY: by this function's conditions no pointer or reference into the range is used after
    // this call, and the range is nobody else's.
    check(unsafe { libc::munmap(at.as_ptr().cast(), len) }.into()).map(drop)
}

/// Gives advice about a range.
///
/// # Safety
/// The caller owns the range. If the advice drops its contents, no code relies on them.
pub(crate) unsafe fn madvise(at: NonNull<u8>, len: usize, advice: i32) -> Result<()> {
    gate(Call::Advise)?;
    // SAFETY: the range is the caller's, and by this function's condition no code relies on bytes
    // that the advice drops.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, advice) }.into()).map(drop)
}

/// Makes a range resident and writable, as if each of its pages had been written, without changing
/// a byte. An unavailable page is an error here, not a signal. A range that is not mapped is an
/// error too.
///
/// Source: `madvise(2)`, `MADV_POPULATE_WRITE`, Linux 5.14.
pub(crate) fn populate_write(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::PopulateWrite)?;
    // SAFETY: the call changes no byte of any mapping.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) }.into())
        .map(drop)
}

/// Returns whether the kernel has [`populate_write`]. Calls it with an empty range, which fails
/// only if the advice is unknown.
pub(crate) fn has_populate_write() -> bool {
    match gate(Call::PopulateWrite) {
        Err(errno) => errno != Errno::EINVAL,
        // SAFETY: the range is empty.
        Ok(()) => unsafe { libc::madvise(ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0 },
    }
}

/// Makes the page of `at` resident and writable without changing a byte, on any kernel. The kernel
/// itself adds 0 to the word atomically, so concurrent writes stay. An unavailable page is
/// an error here, not a signal.
///
/// Source: `futex(2)`, `FUTEX_WAKE_OP`: the kernel applies the operation to the second address even
/// if no thread waits.
pub(crate) fn touch(at: NonNull<u8>) -> Result<()> {
    gate(Call::Touch)?;
    // The operation adds 0; the comparison after it wakes up to 0 waiters.
    let add_zero = libc::FUTEX_OP(libc::FUTEX_OP_ADD, 0, libc::FUTEX_OP_CMP_EQ, 0);
    // SAFETY: the kernel checks the address, and adding 0 atomically changes no byte.
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

/// Makes a range resident and locks it. All pages that the range touches are locked; pages that
/// were locked stay so, and locks do not add up. An error can leave a part of them locked.
pub(crate) fn mlock(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Lock)?;
    // SAFETY: the call changes no byte, and the kernel checks the range.
    check(unsafe { libc::mlock(at.as_ptr().cast(), len) }.into()).map(drop)
}

/// Unlocks all pages that a range touches, however often they were locked.
pub(crate) fn munlock(at: NonNull<u8>, len: usize) -> Result<()> {
    gate(Call::Unlock)?;
    // SAFETY: the call changes no byte, and the kernel checks the range.
    check(unsafe { libc::munlock(at.as_ptr().cast(), len) }.into()).map(drop)
}

/// Reports for each page of a range whether it is resident, in bit 0 of its byte in `pages`. The
/// whole range must be mapped.
pub(crate) fn mincore(at: NonNull<u8>, len: usize, pages: &mut [u8]) -> Result<()> {
    gate(Call::Mincore)?;
    if pages.len() < len.div_ceil(page_size()) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the vector has a byte for each page, and the kernel checks the range.
    check(unsafe { libc::mincore(at.as_ptr().cast(), len, pages.as_mut_ptr()) }.into()).map(drop)
}
