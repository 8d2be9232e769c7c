//! *Generation*: a lock that a forked child finds free.
//!
//! A lock that another thread has when the program forks is never let go in the child, where that thread is not. What it guards here is no data, but a
//! time in which something must not happen; and to the child nothing happens that its parent's threads do. So each generation of processes has
//! a lock of its own, and the child is told of its generation before `fork` returns.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::{FIRST, Stable};

/// How many forks lie between this process and the one that used a lock first; some may count twice.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether forks are counted.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// One lock for each generation.
pub(crate) struct Generations(Stable<Mutex<()>>);

impl Generations {
    pub(crate) const fn new() -> Self {
        Generations(Stable::new([const { Mutex::new(()) }; FIRST], || Mutex::new(())))
    }

    /// The lock of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        count_forks();
        // Relaxed: it changes in the child, before that has a second thread.
        let generation = GENERATION.load(Ordering::Relaxed);
        self.0.get(generation).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has forks counted from now on. Two threads that come first at once both see to it; a fork then counts twice, which does no harm.
/// Where it is refused, for want of memory, a child may wait for a lock that nobody lets go, as with any other lock.
fn count_forks() {
    // Relaxed, both: see above.
    if !COUNTED.load(Ordering::Relaxed) {
        // SAFETY: the function lives as long as the library, and does nothing that a child of several threads may not do.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0 {
            COUNTED.store(true, Ordering::Relaxed);
        }
    }
}

extern "C" fn in_child() {
    // Relaxed: the child has one thread.
    GENERATION.fetch_add(1, Ordering::Relaxed);
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
