//! *Memory files*: memory with a descriptor that another process can attach.
//!
//! The file has no name in any file system. The kernel frees the memory when the last descriptor
//! and the last mapping are gone, even after a crash. The file's size is sealed. Without the seals,
//! any process with the descriptor could shrink the file, and a touch beyond its new end would kill
//! every process that maps it.

use std::fs::File;

use super::options::MapOptions;
use crate::arena::error::call_failed;
use crate::arena::{ArenaError, Call, Errno, PageSize};
use crate::sys::{self, Resource};

/// The seals of a file whose front is safe to map: it cannot shrink, and its seals cannot be
/// changed.
const FRONT_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
/// The seals of a file whose size cannot change.
const SEALS: i32 = FRONT_SEALS | libc::F_SEAL_GROW;

/// The permissions to reopen the file through `/proc/PID/fd`. The kernel's default lets all users
/// write, so any user could turn a read-only descriptor into a writable one. The owner keeps the
/// right to write because engines in this process reopen the file for writing. A descriptor that is
/// already open for writing stays writable.
const MODE: u32 = 0o644;

/// Makes a memory file of `len` bytes that cannot shrink, nor grow unless it is `growable`. Call
/// [`seal`] before other processes attach it.
pub(crate) fn make(page: PageSize, len: usize, growable: bool) -> Result<File, ArenaError> {
    check_limit(len)?;
    let flags = if page.is_pooled() {
        libc::MFD_HUGETLB | page.bytes().ilog2() << libc::MFD_HUGE_SHIFT
    } else {
        0
    };
    let file = sys::memfd_create(c"kvmem", flags)
        .map_err(|errno| call_failed(Call::MemfdCreate, len, errno))?;
    sys::set_mode(&file, MODE).map_err(|errno| call_failed(Call::SetMode, len, errno))?;
    sys::truncate(&file, len).map_err(|errno| call_failed(Call::Truncate, len, errno))?;
    let seals = seals_of(growable) & !libc::F_SEAL_SEAL;
    sys::set_seals(&file, seals).map_err(|errno| call_failed(Call::SetSeals, len, errno))?;
    Ok(file)
}

/// Checks the limit of the size of files. The kernel would kill a process that exceeds it by
/// SIGXFSZ.
pub(super) fn check_limit(len: usize) -> Result<(), ArenaError> {
    match sys::resource_limit(Resource::FileSize) {
        Ok(Some(max)) if max < len as u64 => Err(call_failed(Call::Truncate, len, Errno::EFBIG)),
        _ => Ok(()),
    }
}

fn seals_of(growable: bool) -> i32 {
    if growable { FRONT_SEALS } else { SEALS }
}

/// Adds the final seals to a file. With `readers_only`, no process can map it for writing any more;
/// existing mappings stay as they are.
pub(super) fn seal(file: &File, len: usize, options: &MapOptions) -> Result<(), ArenaError> {
    let readers_only = if options.readers_only { libc::F_SEAL_FUTURE_WRITE } else { 0 };
    let seals = seals_of(options.growable) | readers_only;
    sys::set_seals(file, seals).map_err(|errno| call_failed(Call::SetSeals, len, errno))
}

/// Removes the permission of all users except the owner and root to open the file for writing.
/// Descriptors that are already open stay as they are.
pub(crate) fn forbid_writers(file: &File, len: usize) -> Result<(), ArenaError> {
    let mode = sys::mode(file).map_err(|errno| call_failed(Call::FileSize, len, errno))?;
    if mode & !MODE != 0 {
        // Another process made the file or widened its permissions.
        sys::set_mode(file, mode & MODE).map_err(|errno| call_failed(Call::SetMode, len, errno))?;
    }
    Ok(())
}

/// Checks that a file that another process made is memory whose size cannot change, or only
/// become longer.
pub(crate) fn check_is_sealed_memory(file: &File, growable: bool) -> Result<(), ArenaError> {
    let wanted = seals_of(growable);
    let system = sys::file_system(file).map_err(|errno| call_failed(Call::FileSystem, 0, errno))?;
    if !system.memory {
        return Err(ArenaError::NotMemory);
    }
    let seals = match sys::get_seals(file) {
        Ok(seals) => seals,
        // A file on a tmpfs, which does not support seals.
        Err(Errno::EINVAL) => 0,
        Err(errno) => return Err(call_failed(Call::GetSeals, 0, errno)),
    };
    if seals & wanted != wanted {
        return Err(ArenaError::Unsealed { seals, wanted });
    }
    Ok(())
}

/// Checks that a file is memory, and its size; returns its length in bytes and its kind of page.
pub(crate) fn inspect(
    file: &File,
    expected: Option<usize>,
) -> Result<(usize, PageSize), ArenaError> {
    let system = sys::file_system(file).map_err(|errno| call_failed(Call::FileSystem, 0, errno))?;
    if !system.memory {
        return Err(ArenaError::NotMemory);
    }
    let found = sys::file_size(file).map_err(|errno| call_failed(Call::FileSize, 0, errno))?;
    if let Some(expected) = expected.filter(|expected| *expected as u64 != found) {
        return Err(ArenaError::WrongSize { found, expected: expected as u64 });
    }
    let page = if system.huge {
        PageSize::pooled(system.block).ok_or(ArenaError::NotMemory)?
    } else {
        PageSize::Base
    };
    match usize::try_from(found) {
        Ok(0) => Err(ArenaError::ZeroSize),
        Ok(len) if len.is_multiple_of(page.bytes()) => Ok((len, page)),
        Ok(len) => Err(ArenaError::Misaligned { start: 0, end: len, page: page.bytes() }),
        Err(_) => Err(ArenaError::TooLarge { requested: usize::MAX, max: isize::MAX as usize }),
    }
}
