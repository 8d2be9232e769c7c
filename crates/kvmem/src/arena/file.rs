//! *Memory files*: memory with a descriptor, which another process can attach.
//!
//! The file has no name in any file system: when the last descriptor and mapping of it are gone,
//! however that came about, so is the memory. Its size is sealed. Without that, whoever holds the
//! descriptor could shrink it, and a touch beyond its new end would kill every process that has it
//! mapped.

use std::fs::File;

use super::diagnose::refused;
use super::{ArenaError, Call, Errno, PageSize};
use crate::sys::{self, Resource};

/// Seals of a file whose size does not change.
const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// Seals of a file that is safe to map: it can neither shrink nor grow, nor can that be changed.
const SEALS: i32 = SIZE_SEALS | libc::F_SEAL_SEAL;

/// Who may open the file anew, by `/proc/PID/fd`. The kernel would make it writable for all users,
/// and a descriptor for reading would be a way to write. Engines in this process open it so for
/// writing, so its owner may. A descriptor for writing stays one.
const MODE: u32 = 0o644;

/// Makes a memory file of `len` bytes, which can neither shrink nor grow. It takes [`seal`] to be
/// one that others attach.
pub(crate) fn make(page: PageSize, len: usize) -> Result<File, ArenaError> {
    // The kernel would answer a file longer than this with a deadly signal.
    if let Ok(Some(most)) = sys::resource_limit(Resource::FileSize)
        && most < len as u64
    {
        return Err(refused(Call::Truncate, len, Errno::EFBIG));
    }
    let flags = if page.is_pooled() {
        libc::MFD_HUGETLB | page.bytes().ilog2() << libc::MFD_HUGE_SHIFT
    } else {
        0
    };
    let file = sys::memfd_create(c"kvmem", flags)
        .map_err(|errno| refused(Call::MemfdCreate, len, errno))?;
    sys::set_mode(&file, MODE).map_err(|errno| refused(Call::SetMode, len, errno))?;
    sys::truncate(&file, len).map_err(|errno| refused(Call::Truncate, len, errno))?;
    sys::set_seals(&file, SIZE_SEALS).map_err(|errno| refused(Call::SetSeals, len, errno))?;
    Ok(file)
}

/// Seals a file for good. With `readers_only` no process maps it for writing any more; mappings
/// that are there stay as they are.
pub(crate) fn seal(file: &File, len: usize, readers_only: bool) -> Result<(), ArenaError> {
    let seals = if readers_only { SEALS | libc::F_SEAL_FUTURE_WRITE } else { SEALS };
    sys::set_seals(file, seals).map_err(|errno| refused(Call::SetSeals, len, errno))
}

/// Lets nobody but its owner and root open the file for writing; what was opened before stays as it
/// is.
#[cfg(not(loom))]
pub(crate) fn forbid_writers(file: &File, len: usize) -> Result<(), ArenaError> {
    let mode = sys::mode(file).map_err(|errno| refused(Call::FileSize, len, errno))?;
    if mode & !MODE != 0 {
        // A file that somebody else made, or opened up again.
        sys::set_mode(file, mode & MODE).map_err(|errno| refused(Call::SetMode, len, errno))?;
    }
    Ok(())
}

/// Looks at a file that another process made: its length in bytes and the pages it is made of.
pub(crate) fn inspect(
    file: &File,
    expected: Option<usize>,
) -> Result<(usize, PageSize), ArenaError> {
    let system = sys::file_system(file).map_err(|errno| refused(Call::FileSystem, 0, errno))?;
    if !system.memory {
        return Err(ArenaError::NotMemory);
    }
    let seals = match sys::get_seals(file) {
        Ok(seals) => seals,
        // A file of a tmpfs that was not made to be sealed.
        Err(Errno::EINVAL) => 0,
        Err(errno) => return Err(refused(Call::GetSeals, 0, errno)),
    };
    if seals & SEALS != SEALS {
        return Err(ArenaError::Unsealed { seals, wanted: SEALS });
    }
    let found = sys::file_size(file).map_err(|errno| refused(Call::FileSize, 0, errno))?;
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
        Err(_) => Err(ArenaError::TooLarge { requested: usize::MAX, most: isize::MAX as usize }),
    }
}
