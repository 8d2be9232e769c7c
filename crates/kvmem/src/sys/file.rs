//! *File calls*: memory files, page tables as files, and the small files of `/proc` and `/sys`.

use std::ffi::CStr;
use std::fs::{self, File, Permissions};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::call::Call;
use super::errno::Errno;
use super::errno::{Result, check};
use super::gate::gate;

/// Makes an anonymous file that can be sealed, closed on exec, and that no process can execute.
/// `flags` are further `MFD_*` flags.
pub(crate) fn memfd_create(name: &CStr, flags: u32) -> Result<File> {
    gate(Call::MemfdCreate)?;
    let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let create = |flags| {
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        check(fd.into()).map(|_| fd)
    };
    // Kernels before Linux 6.3 do not know the flag.
    let fd = match create(flags | libc::MFD_NOEXEC_SEAL) {
        Err(Errno::EINVAL) => create(flags)?,
        created => created?,
    };
    // SAFETY: the descriptor was made just now; no other code has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Sets the size of a file.
pub(crate) fn truncate(file: &File, len: usize) -> Result<()> {
    gate(Call::Truncate)?;
    file.set_len(len as u64).map_err(|error| Errno::of(&error))
}

/// Sets the permission bits of a file.
pub(crate) fn set_mode(file: &File, mode: u32) -> Result<()> {
    gate(Call::SetMode)?;
    file.set_permissions(Permissions::from_mode(mode)).map_err(|error| Errno::of(&error))
}

/// Returns the permission bits of a file.
pub(crate) fn mode(file: &File) -> Result<u32> {
    gate(Call::FileSize)?;
    file.metadata().map(|data| data.mode() & 0o777).map_err(|error| Errno::of(&error))
}

/// Adds seals (`F_SEAL_*`) to a file.
pub(crate) fn set_seals(file: &File, seals: i32) -> Result<()> {
    gate(Call::SetSeals)?;
    // SAFETY: the call takes a number, no pointer.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into()).map(drop)
}

/// Returns the seals of a file; `EINVAL` if it cannot have any.
pub(crate) fn get_seals(file: &File) -> Result<i32> {
    gate(Call::GetSeals)?;
    // SAFETY: the call takes no argument.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    check(seals.into()).map(|_| seals)
}

/// Duplicates a descriptor; the new one is closed on exec.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    gate(Call::Duplicate)?;
    fd.try_clone_to_owned().map_err(|error| Errno::of(&error))
}

/// Opens a read-only descriptor of the same file through `/proc`, closed on exec.
pub(crate) fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    gate(Call::Reopen)?;
    let file = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    file.map(OwnedFd::from).map_err(|error| Errno::of(&error))
}

/// Returns the inode number of a file, which is unique among the memory files that exist at the
/// same time.
pub(crate) fn file_number(file: &File) -> Result<u64> {
    gate(Call::FileSize)?;
    file.metadata().map(|data| data.ino()).map_err(|error| Errno::of(&error))
}

/// The identity of a file in `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// The device numbers of its file system.
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// Its inode number.
    pub(crate) number: u64,
}

/// Returns the identity of a file.
pub(crate) fn file_id(file: &File) -> Result<FileId> {
    gate(Call::FileSize)?;
    let data = file.metadata().map_err(|error| Errno::of(&error))?;
    let (major, minor) = (libc::major(data.dev()), libc::minor(data.dev()));
    Ok(FileId { major, minor, number: data.ino() })
}

/// Returns the size of a file in bytes.
pub(crate) fn file_size(file: &File) -> Result<u64> {
    gate(Call::FileSize)?;
    file.metadata().map(|data| data.len()).map_err(|error| Errno::of(&error))
}

/// The properties of a file's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem {
    /// Whether it consists of hugetlb pages.
    pub(crate) huge: bool,
    /// Whether it is memory: hugetlb pages or tmpfs.
    pub(crate) memory: bool,
    /// Its block size in bytes: for hugetlb pages the page size.
    pub(crate) block: u64,
}

/// Returns the properties of a file's file system.
pub(crate) fn file_system(file: &File) -> Result<FileSystem> {
    gate(Call::FileSystem)?;
    let mut data = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the output has the type that the call fills.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), data.as_mut_ptr()) }.into())?;
    // SAFETY: the call succeeded, so it has filled all of it.
    let data = unsafe { data.assume_init() };
    let huge = data.f_type == libc::HUGETLBFS_MAGIC;
    Ok(FileSystem {
        huge,
        memory: huge || data.f_type == libc::TMPFS_MAGIC,
        block: data.f_bsize as u64,
    })
}

/// Opens this process's page table as a file, with eight bytes per base page.
pub(crate) fn open_pagemap() -> Result<File> {
    gate(Call::OpenPagemap)?;
    File::open("/proc/self/pagemap").map_err(|error| Errno::of(&error))
}

/// Reads from a file at an offset; returns the number of bytes read.
pub(crate) fn pread(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
    gate(Call::Pread)?;
    file.read_at(buffer, offset).map_err(|error| Errno::of(&error))
}

/// A run of pages with equal properties, found by [`pagemap_scan`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageRegion {
    /// First address.
    pub(crate) start: u64,
    /// One past the last address.
    pub(crate) end: u64,
    categories: u64,
}

impl PageRegion {
    /// Returns whether these pages are mapped as hugepages.
    pub(crate) fn huge(&self) -> bool {
        self.categories & PAGE_IS_HUGE != 0
    }
}

// From the kernel's include/uapi/linux/fs.h.
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// The kernel's shared zero page, mapped by pages that were only read.
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Finds the runs of resident pages between `start` and `end`. Returns the number of filled `runs`
/// and the address up to which the kernel scanned. Exact, and quick for long runs.
///
/// Source: the kernel's `Documentation/admin-guide/mm/pagemap.rst`, Linux 6.7.
pub(crate) fn pagemap_scan(
    pagemap: &File,
    start: u64,
    end: u64,
    runs: &mut [PageRegion],
) -> Result<(usize, u64)> {
    gate(Call::PagemapScan)?;
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start,
        end,
        vec: runs.as_mut_ptr() as u64,
        vec_len: runs.len() as u64,
        // Present, and not the zero page.
        category_inverted: PAGE_IS_PFNZERO,
        category_mask: PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
        return_mask: PAGE_IS_HUGE,
        ..ScanArguments::default()
    };
    // SAFETY: the arguments have the layout of the kernel's `pm_scan_arg`, with a vector and its
    // length.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
    Ok((check(found.into())?.min(runs.len()), arguments.walk_end))
}

/// Reads a small text file.
pub(crate) fn read_text(path: &str) -> Result<String> {
    gate(Call::ReadText)?;
    fs::read_to_string(path).map_err(|error| Errno::of(&error))
}

/// Opens a file of `/proc` or `/sys` to read it in parts.
pub(crate) fn open_text(path: &Path) -> Result<File> {
    gate(Call::ReadText)?;
    File::open(path).map_err(|error| Errno::of(&error))
}

/// Returns whether a path is a folder; fails if it does not exist.
pub(crate) fn is_folder(path: &Path) -> Result<bool> {
    gate(Call::Stat)?;
    fs::metadata(path).map(|found| found.is_dir()).map_err(|error| Errno::of(&error))
}

/// Returns the names in a folder, in no order. Names that are not UTF-8 are left out.
pub(crate) fn folder_names(path: &Path) -> Result<Vec<String>> {
    gate(Call::ListFolder)?;
    let names = fs::read_dir(path).map_err(|error| Errno::of(&error))?;
    let names: std::io::Result<Vec<_>> = names.map(|entry| Ok(entry?.file_name())).collect();
    let names = names.map_err(|error| Errno::of(&error))?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

/// Returns the target of a symbolic link.
pub(crate) fn link_target(path: &Path) -> Result<String> {
    gate(Call::ReadLink)?;
    let target = fs::read_link(path).map_err(|error| Errno::of(&error))?;
    Ok(target.to_string_lossy().into_owned())
}

/// A regular file of a folder: its bytes in memory or on disk, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredFile {
    pub(crate) stored_bytes: u64,
    pub(crate) user: u32,
}

/// Returns the properties of a regular file; `None` if the path is something else. Does not follow
/// a link.
pub(crate) fn stored_file(path: &Path) -> Result<Option<StoredFile>> {
    gate(Call::Stat)?;
    let found = fs::symlink_metadata(path).map_err(|error| Errno::of(&error))?;
    Ok(found.is_file().then(|| StoredFile {
        stored_bytes: found.blocks().saturating_mul(512),
        user: found.uid(),
    }))
}

/// Returns the size of the file system at `path` and the free bytes for ordinary users.
pub(crate) fn space_at(path: &CStr) -> Result<(u64, u64)> {
    gate(Call::SpaceAt)?;
    let mut space = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero, and the output has the type that the call fills.
    check(unsafe { libc::statvfs(path.as_ptr(), space.as_mut_ptr()) }.into())?;
    // SAFETY: the call succeeded, so it has filled all of it.
    let space = unsafe { space.assume_init() };
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok((bytes(space.f_blocks), bytes(space.f_bavail)))
}
