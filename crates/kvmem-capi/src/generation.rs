//! *Generation*: a lock that a forked child finds free.
//!
//! A lock that another thread has when the program forks is never let go in the child, where that
//! thread is not. What it guards here is no data, but a time in which something must not happen;
//! and to the child nothing happens that its parent's threads do. So each generation of processes
//! has a lock of its own, and the child is told of its generation before `fork` returns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::{FIRST, Stable};

use crate::fork;

/// One lock for each generation.
pub(crate) struct Generations(Stable<Mutex<()>>);

impl Generations {
    pub(crate) const fn new() -> Self {
        Generations(Stable::new([const { Mutex::new(()) }; FIRST], || Mutex::new(())))
    }

    /// The lock of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        fork::watch();
        self.0.get(fork::generation()).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_finds_it_free() {
        static LOCKS: Generations = Generations::new();
        let held = LOCKS.lock();
        // SAFETY: the child takes no lock of anybody else's, and ends with _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(20) };
            drop(LOCKS.lock());
            // SAFETY: as above.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
        drop(held);
    }
}
