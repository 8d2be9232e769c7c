//! *Guarded owner*: the owner lock as an instance uses it.

use super::super::owner_lock::OwnerLock;
use crate::sync::{Mutex, Ordering, fence};

/// An owner lock, and the lock that its stoppers use.
pub(super) struct GuardedOwner {
    lock: OwnerLock,
    stoppers: Mutex<()>,
}

impl GuardedOwner {
    /// Makes a free lock.
    pub(super) fn new(fenced: bool) -> Self {
        GuardedOwner { lock: OwnerLock::new(fenced), stoppers: Mutex::new(()) }
    }

    /// Runs `run` with the lock, as the owner.
    pub(super) fn enter(&self, run: impl FnOnce()) {
        // SAFETY: one thread of a model is the owner, and `run` does not enter.
        let _guard = unsafe { self.lock.try_enter().unwrap_or_else(|| self.lock.enter()) };
        run();
    }

    /// Runs `run` with the lock, as a stopper. `reached` says whether the barrier runs on all
    /// threads. Returns false without running it if that is not so and the owner is not known to
    /// make fences.
    pub(super) fn stop(&self, reached: bool, run: impl FnOnce()) -> bool {
        let _stoppers = self.stoppers.lock();
        self.lock.stop();
        if !reached {
            self.lock.make_fenced();
        }
        fence(Ordering::SeqCst);
        let settled = self.lock.wait_until_out(reached);
        if settled {
            run();
            // SAFETY: this thread has stopped the owner, and `run` is done.
            unsafe { self.lock.resume() };
        }
        settled
    }
}
