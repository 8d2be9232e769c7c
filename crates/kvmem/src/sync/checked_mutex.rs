//! *Checked mutex*: the model checker's, with the interface of `lock_api`.
//!
//! `lock_api` requires constants, so its mutex cannot stand on a checker's atomics. Besides, the
//! checker knows that its own mutex waits, so a model has fewer steps. The lock that takes its
//! place in other builds has models of its own.

use super::checker::sync;

/// Stands for a [`Mutex`](super::Mutex) in models.
#[derive(Debug, Default)]
pub(crate) struct CheckedMutex<T>(sync::Mutex<T>);

/// The guard of a [`CheckedMutex`].
pub(crate) type CheckedMutexGuard<'a, T> = sync::MutexGuard<'a, T>;

impl<T> CheckedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        CheckedMutex(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> CheckedMutexGuard<'_, T> {
        self.0.lock().expect("no thread panics under the lock")
    }

    pub(crate) fn try_lock(&self) -> Option<CheckedMutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("no thread panics under the lock")
    }

    /// # Safety
    ///
    /// None: it panics, because only forks need it.
    pub(crate) unsafe fn force_unlock(&self) {
        no_forks()
    }

    pub(crate) fn data_ptr(&self) -> *mut T {
        no_forks()
    }
}

pub(crate) fn hold_over_fork<T>(_: &CheckedMutex<T>) {
    no_forks()
}

pub(crate) fn release_over_fork<T>(_: &CheckedMutex<T>) {
    no_forks()
}

fn no_forks() -> ! {
    panic!("a model does not fork")
}
