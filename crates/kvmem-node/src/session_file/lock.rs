//! *Locks* of open files: one process holds them, and any other can ask the kernel.
//!
//! A lock belongs to an open file description, not to a process. The kernel releases it when the
//! last descriptor and the last mapping of that description are gone. POSIX locks, in contrast,
//! belong to a process and end when it closes any descriptor of the file, also one that another
//! library has opened.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Takes a shared lock of one byte at `position`, which need not exist in the file, for the open
/// file of a descriptor. The thread gets it also while other shared locks exist.
pub(crate) fn lock(file: impl AsFd, position: u64) -> Result<(), Errno> {
    let mut lock = at(libc::F_RDLCK, position);
    control(file, libc::F_OFD_SETLK, &mut lock)
}

/// Returns whether another open file than that of the descriptor has a lock at `position`.
pub(crate) fn is_locked_by_others(file: impl AsFd, position: u64) -> Result<bool, Errno> {
    let mut lock = at(libc::F_WRLCK, position);
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn at(kind: libc::c_int, position: u64) -> libc::flock64 {
    // SAFETY: the structure consists of integers, of which 0 is a value.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = position as libc::off64_t;
    lock.l_len = 1;
    lock
}

fn control(file: impl AsFd, command: libc::c_int, lock: &mut libc::flock64) -> Result<(), Errno> {
    // SAFETY: the descriptor is open during the call, and the pointer is to a structure of the type
    // that both commands read and write, which lives during the call.
    let failed = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut *lock) };
    match failed {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;

    use super::*;

    /// Opens a temporary file several times.
    fn opened<const N: usize>() -> [File; N] {
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        std::array::from_fn(|_| file.reopen().expect("it is there"))
    }

    #[test]
    fn a_lock_lasts_as_long_as_its_open_file() {
        let [server, client, other] = opened();
        lock(&client, 7).expect("a shared lock");
        lock(&other, 7).expect("a second one");
        assert_eq!(is_locked_by_others(&server, 7), Ok(true));
        assert_eq!(is_locked_by_others(&server, 8), Ok(false));
        let duplicate = client.try_clone().expect("a descriptor");
        drop(client);
        drop(other);
        assert_eq!(is_locked_by_others(&server, 7), Ok(true), "a duplicate holds the open file");
        drop(duplicate);
        assert_eq!(is_locked_by_others(&server, 7), Ok(false));
    }

    #[test]
    fn an_open_file_does_not_see_its_own_lock() {
        let [own, other] = opened();
        lock(&own, 0).expect("a shared lock");
        assert_eq!(is_locked_by_others(&own, 0), Ok(false));
        assert_eq!(is_locked_by_others(&other, 0), Ok(true));
    }
}
