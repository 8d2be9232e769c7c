//! How the threads of a loop wait for each other, on real and on simulated cores.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of a loop.
#[cfg(not(kvmem_simulated))]
#[inline]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex of a loop. A simulated thread that waits lets the others go on.
#[cfg(kvmem_simulated)]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    use kvmem_testkit::cores;
    use std::sync::TryLockError;
    loop {
        cores::change(std::ptr::from_ref(mutex));
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(error)) => return PoisonError::into_inner(error),
            Err(TryLockError::WouldBlock) => cores::pause(),
        }
    }
}

/// Lets other threads go on.
pub(super) fn yield_now() {
    #[cfg(not(kvmem_simulated))]
    std::thread::yield_now();
    #[cfg(kvmem_simulated)]
    kvmem_testkit::cores::pause();
}
