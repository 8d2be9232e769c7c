//! *Fork lock*: a lock that is free in a forked child.
//!
//! If a thread holds a lock during a fork, the lock is never released in the child, where that
//! thread does not exist. This lock guards no data but an interval in which something must not
//! happen, and the parent's threads do nothing in the child. Each generation of processes therefore
//! has its own lock, and the child learns its generation before `fork` returns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::{AppendOnlyTable, FIRST};

use crate::fork;

/// One lock for each generation of processes.
pub(crate) struct ForkLock(AppendOnlyTable<Mutex<()>>);

impl ForkLock {
    pub(crate) const fn new() -> Self {
        ForkLock(AppendOnlyTable::new([const { Mutex::new(()) }; FIRST], || Mutex::new(())))
    }

    /// Locks the lock of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        fork::install_handler();
        self.0.get(fork::generation()).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_finds_the_lock_free() {
        static LOCKS: ForkLock = ForkLock::new();
        let held = LOCKS.lock();
        // SAFETY: the child takes only its own generation's lock, and ends with _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: takes no pointers.
            unsafe { libc::alarm(20) };
            drop(LOCKS.lock());
            // SAFETY: takes no pointers.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
        drop(held);
    }
}
