//! *File locks*: byte ranges that the kernel keeps with an open file and releases when its process
//! ends.
//!
//! A read lock on a byte range needs no write permission, and the bytes need not exist. A process
//! can therefore lock a range of a directory on a read-only file system. Every process that can
//! open the same file can see the range.

use std::fs::{File, TryLockError};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::call::Call;
use super::errno::Errno;
use super::errno::{Result, check};
use super::gate::gate;

/// The end of the longest range that can be locked.
pub(crate) const LOCK_END: u64 = i64::MAX as u64;

/// Opens a file or a directory to lock ranges of it.
pub(crate) fn open_to_lock(path: &Path) -> Result<File> {
    gate(Call::OpenToLock)?;
    File::open(path).map_err(|error| Errno::of(&error))
}

fn lock(kind: libc::c_int, range: &Range<u64>) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start.min(LOCK_END) as i64,
        // A length of 0 would mean a range without end.
        l_len: range.end.min(LOCK_END).saturating_sub(range.start).max(1) as i64,
        l_pid: 0,
    }
}

/// Locks a range for reading; further locks of the same open file add to it. Closing the file
/// unlocks it.
pub(crate) fn lock_range(file: &File, range: &Range<u64>) -> Result<()> {
    gate(Call::LockRange)?;
    let lock = lock(libc::F_RDLCK, range);
    // SAFETY: the kernel reads the structure.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }.into())
        .map(drop)
}

/// Unlocks a range that this open file has locked.
pub(crate) fn unlock_range(file: &File, range: &Range<u64>) -> Result<()> {
    gate(Call::LockRange)?;
    let lock = lock(libc::F_UNLCK, range);
    // SAFETY: the kernel reads the structure.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }.into())
        .map(drop)
}

/// Returns a range within `range` that another open file has locked, if there is one.
pub(crate) fn find_lock(file: &File, range: &Range<u64>) -> Result<Option<Range<u64>>> {
    gate(Call::FindLock)?;
    // A write lock would conflict with every read lock.
    let mut found = lock(libc::F_WRLCK, range);
    // SAFETY: the kernel reads and fills the structure.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut found) }.into())?;
    if found.l_type == libc::F_UNLCK as libc::c_short {
        return Ok(None);
    }
    let start = found.l_start.max(0) as u64;
    let end =
        if found.l_len == 0 { LOCK_END } else { start.saturating_add(found.l_len.max(0) as u64) };
    Ok(Some(start.max(range.start)..end.min(range.end)))
}

/// Locks the whole file against other callers of this function; returns whether it succeeded.
/// Independent of range locks.
pub(crate) fn try_lock(file: &File) -> Result<bool> {
    gate(Call::LockFile)?;
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(Errno::of(&error)),
    }
}

/// Releases the lock of [`try_lock`].
pub(crate) fn unlock(file: &File) -> Result<()> {
    gate(Call::LockFile)?;
    file.unlock().map_err(|error| Errno::of(&error))
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn other_open_files_see_the_ranges_of_a_directory() {
        let open = || open_to_lock(Path::new("/")).expect("a readable directory");
        let (one, two) = (open(), open());
        let range = (1 << 50)..(1 << 50) + 100;
        lock_range(&one, &range).expect("no write permission is needed");
        assert_eq!(find_lock(&one, &range).expect("measured"), None, "its own");
        let seen = |range: Range<u64>| find_lock(&two, &range).expect("measured");
        assert_eq!(seen((1 << 50) - 5..LOCK_END), Some(range.clone()));
        unlock_range(&one, &((1 << 50) + 40..LOCK_END)).expect("its own");
        assert_eq!(seen(1 << 50..LOCK_END), Some(1 << 50..(1 << 50) + 40));
        drop(one);
        assert_eq!(seen(1 << 50..LOCK_END), None, "unlocked by closing the file");
    }
}
