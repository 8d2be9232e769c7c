//! The benchmark of loops of many threads on simulated cores, in virtual time.

#[cfg(kvmem_simulated)]
mod loops;
#[cfg(kvmem_simulated)]
mod suite;

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::suite::Run;

/// Runs the benchmark.
#[cfg(kvmem_simulated)]
pub fn run(run: &mut Run) -> Result<()> {
    suite::run(run)
}

/// Fails: the atomics of this build are the processor's.
///
/// # Errors
///
/// Always.
#[cfg(not(kvmem_simulated))]
pub fn run(_: &mut Run) -> Result<()> {
    anyhow::bail!(
        "the threads of this program run on the cores of this machine: `cargo xtask bench \
         simulate` builds one whose threads run on simulated cores"
    )
}

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
