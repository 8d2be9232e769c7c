//! *Mutex*: a [lock](super::lock) and the data that it guards.

use super::checker::Ordering;
use super::lock::RawLock;

/// A mutex for short critical sections; it cannot be poisoned.
pub(crate) type Mutex<T> = lock_api::Mutex<RawLock, T>;

/// The guard of a [`Mutex`].
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

// SAFETY: `acquire` and `try_acquire` return with the lock only if their swap changed `held` from
// false to true. Between two such swaps a thread stored false. Only `release` does that, and its
// caller held the lock, so there is one holder at a time.
unsafe impl lock_api::RawMutex for RawLock {
    // The constant is only used to make new locks.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = RawLock::new();

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock(&self) {
        self.acquire();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_acquire()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock, by the contract of `RawMutex::unlock`.
        unsafe { self.release() };
    }
}

/// Takes a lock before a fork and forgets its guard: [`release_over_fork`] releases the lock in the
/// parent and in the child.
pub(crate) fn hold_over_fork<T>(mutex: &Mutex<T>) {
    std::mem::forget(mutex.lock());
    // SAFETY: this function does not release the lock under the mutex.
    let lock = unsafe { mutex.raw() };
    // Relaxed: `release_over_fork` reads it in the same thread, or in that thread's copy in the
    // child.
    lock.over_fork.store(true, Ordering::Relaxed);
}

/// Releases a lock that [`hold_over_fork`] took; does nothing to any other lock.
pub(crate) fn release_over_fork<T>(mutex: &Mutex<T>) {
    // SAFETY: the lock under the mutex is released below only if it has no guard.
    let lock = unsafe { mutex.raw() };
    // Relaxed: this thread, or the thread that it is the copy of, stored it.
    if lock.over_fork.swap(false, Ordering::Relaxed) {
        // SAFETY: the mark says that the lock is held without a guard; only this call has cleared
        // the mark.
        unsafe { mutex.force_unlock() };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };

    #[test]
    fn one_holder_at_a_time() {
        let total = Mutex::new(0u64);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut guard = total.lock();
                        let before = *guard;
                        std::hint::black_box(&mut *guard);
                        *guard = before + 1;
                    }
                });
            }
        });
        assert_eq!(*total.lock(), 8 * ROUNDS);
    }

    #[test]
    fn a_lock_held_over_a_fork_is_released_once() {
        let lock = Mutex::new(0);
        hold_over_fork(&lock);
        assert!(lock.try_lock().is_none());
        release_over_fork(&lock);
        let guard = lock.try_lock().expect("it was released");
        // This guard's lock was not taken by `hold_over_fork`.
        release_over_fork(&lock);
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_waiter_outlasts_a_long_hold() {
        let lock = Mutex::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.lock()));
            thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            drop(guard);
        });
    }
}
