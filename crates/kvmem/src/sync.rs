//! Atomics and locks. They are the standard ones, or those of a model checker: loom's under `--cfg
//! loom`, shuttle's under `--cfg loom --cfg shuttle`.
//!
//! ## The lock
//!
//! Critical sections that change metadata take a few dozen nanoseconds, so the cost of an
//! uncontended lock is a good part of an allocation. Taking a lock needs one atomic
//! read-modify-write, which drains the processor's store buffer and delays later loads. Locks that
//! put waiters to sleep in a queue need a second one for the release, because the releasing thread
//! must not miss a waiter that is about to sleep. [`RawLock`] releases with a plain store. Its
//! waiters spin for about as long as a critical section takes, then yield, then sleep for short
//! periods, and check the lock again by themselves. Uncontended, that takes 5 ns instead of 10 on
//! the machine where it was measured. Next to cache misses it saves more, because the stores of one
//! operation then overlap with the loads of the next. The drawback: if the holder is preempted, a
//! waiter may notice the release up to [`NAP`] late.

#[cfg(loom)]
pub(crate) use self::model::Mutex;
#[cfg(all(loom, not(shuttle)))]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(all(loom, not(shuttle)))]
use loom::{hint, sync as checked, thread};
#[cfg(shuttle)]
use shuttle::{hint, sync as checked, thread};
#[cfg(not(loom))]
use std::{hint, thread};

#[cfg(not(loom))]
mod append_only;
mod striped;

#[cfg(not(loom))]
pub use self::append_only::{AppendOnlyTable, FIRST};
#[cfg(not(loom))]
pub(crate) use self::striped::thread_number;
pub(crate) use self::striped::{Striped, StripedWriteGuard};

use std::time::Duration;

/// A mutex for short critical sections; it cannot be poisoned.
#[cfg(not(loom))]
pub(crate) type Mutex<T> = lock_api::Mutex<RawLock, T>;

/// The guard of a [`Mutex`].
#[cfg(not(loom))]
type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;
#[cfg(loom)]
type MutexGuard<'a, T> = checked::MutexGuard<'a, T>;

/// Loads of a held lock before the waiter yields its processor. Few for the model checker, which
/// tries all orders of them.
const SPINS: u32 = if cfg!(loom) { 2 } else { 100 };
/// Loads before the waiter sleeps.
const SPINS_AND_YIELDS: u32 = if cfg!(loom) { 3 } else { 150 };
/// The time that it sleeps between loads.
const NAP: Duration = Duration::from_micros(50);

/// A lock that is released by a plain store.
pub(crate) struct RawLock {
    held: AtomicBool,
    /// The lock is held over a fork and its guard was forgotten.
    #[cfg(not(loom))]
    over_fork: AtomicBool,
}

impl RawLock {
    /// Makes a free lock.
    fn free() -> Self {
        RawLock {
            held: AtomicBool::new(false),
            #[cfg(not(loom))]
            over_fork: AtomicBool::new(false),
        }
    }

    /// Takes the lock; waits while another thread holds it.
    #[inline]
    fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    /// Takes the lock unless another thread holds it.
    #[inline]
    #[cfg(not(loom))]
    fn try_acquire(&self) -> bool {
        // Acquire pairs with the Release in `release`: the last holder's writes are visible.
        !self.held.swap(true, Ordering::Acquire)
    }

    /// Takes the lock unless another thread holds it. On hardware, a swap that finds `true` stores
    /// it again in the same step. loom lets other stores come between the two, so the holder's
    /// `false` could come before the waiter's `true` and all threads would wait forever. In the
    /// model, a failed attempt therefore stores nothing.
    #[cfg(loom)]
    fn try_acquire(&self) -> bool {
        // Acquire pairs with the Release in `release`: the last holder's writes are visible.
        // Relaxed: on failure nothing was taken.
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock, which the caller holds.
    #[inline]
    fn release(&self) {
        // Release pairs with the Acquire in `try_acquire`.
        self.held.store(false, Ordering::Release);
    }

    #[cold]
    fn wait(&self) {
        let mut backoff = Backoff::default();
        loop {
            // Relaxed: only a hint when to try; `try_acquire` acquires.
            while self.held.load(Ordering::Relaxed) {
                backoff.pause();
            }
            if self.try_acquire() {
                return;
            }
        }
    }
}

/// A sequence counter: guards figures that change together. Writers exclude each other. Readers
/// take no lock, and accept figures of two moments if the changes never pause.
pub(crate) struct SeqCounter {
    /// Odd during a change.
    changes: AtomicU64,
}

/// Attempts to read the figures consistently.
#[cfg(not(loom))]
const LOOKS: usize = 100;

impl SeqCounter {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        SeqCounter { changes: AtomicU64::new(0) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        SeqCounter { changes: AtomicU64::new(0) }
    }

    /// Runs `change`, which stores the figures. The caller holds a lock that all writers take.
    pub(crate) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        // Relaxed, both: one writer at a time; ordered by the fence.
        let before = self.changes.load(Ordering::Relaxed);
        self.changes.store(before.wrapping_add(1), Ordering::Relaxed);
        // Release pairs with the Acquire fence in `look`: a reader that sees a later store sees an
        // odd number, or a larger one.
        fence(Ordering::Release);
        let done = change();
        // Release pairs with the Acquire load in `look`: a reader that sees the number sees all
        // that was stored.
        self.changes.store(before.wrapping_add(2), Ordering::Release);
        done
    }

    /// Returns the result of `look`, which loads the figures. The figures are consistent unless 100
    /// attempts meet a change. Never waits for a writer that was preempted.
    #[cfg(not(loom))]
    pub(crate) fn look<T>(&self, look: impl Fn() -> T) -> T {
        let mut looks = 0;
        loop {
            // Acquire pairs with the Release at the end of `change`.
            let before = self.changes.load(Ordering::Acquire);
            let found = look();
            // Acquire pairs with the Release fence in `change`.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            let whole = before.is_multiple_of(2) && before == self.changes.load(Ordering::Relaxed);
            looks += 1;
            if whole || looks == LOOKS {
                return found;
            }
            hint::spin_loop();
        }
    }
}

/// Waits between two checks of a condition that another thread is about to change.
#[derive(Default)]
pub(crate) struct Backoff {
    looks: u32,
}

impl Backoff {
    /// Spins at first, then yields the processor, then sleeps for short periods.
    pub(crate) fn pause(&mut self) {
        self.looks = self.looks.saturating_add(1);
        match self.looks {
            0..SPINS => hint::spin_loop(),
            SPINS..SPINS_AND_YIELDS => thread::yield_now(),
            _ => nap(),
        }
    }
}

#[cfg(not(loom))]
fn nap() {
    thread::sleep(NAP);
}

/// A model has no time: sleeping means that the other threads run first.
#[cfg(loom)]
fn nap() {
    thread::yield_now();
}

// SAFETY: `acquire` and `try_acquire` return with the lock only if their swap changed `held` from
// false to true. Between two such swaps a thread stored false. Only `release` does that, and its
// caller held the lock, so there is one holder at a time.
#[cfg(not(loom))]
unsafe impl lock_api::RawMutex for RawLock {
    // The constant is only used to make new locks.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = RawLock { held: AtomicBool::new(false), over_fork: AtomicBool::new(false) };

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
        self.release();
    }
}

/// Takes a lock before a fork and forgets its guard: [`release_over_fork`] releases the lock in the
/// parent and in the child.
#[cfg(not(loom))]
pub(crate) fn hold_over_fork<T>(mutex: &Mutex<T>) {
    std::mem::forget(mutex.lock());
    // SAFETY: this function does not release the lock under the mutex.
    let lock = unsafe { mutex.raw() };
    // Relaxed: `release_over_fork` reads it in the same thread, or in that thread's copy in the
    // child.
    lock.over_fork.store(true, Ordering::Relaxed);
}

/// Releases a lock that [`hold_over_fork`] took; does nothing to any other lock.
#[cfg(not(loom))]
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

/// The locks alone, for the model checks in `tests/loom` and `tests/shuttle`. `lock_api` requires
/// constants, and loom's atomics cannot be made in constants.
#[cfg(loom)]
pub mod loom_face {
    use super::{AtomicU32, RawLock};

    /// The lock inside every [`Mutex`](super::Mutex) outside of the model.
    pub struct Lock(RawLock);

    impl Lock {
        /// Makes a free lock.
        #[allow(clippy::new_without_default)]
        pub fn new() -> Self {
            Lock(RawLock::free())
        }

        /// Takes the lock, like `RawMutex::lock`.
        pub fn lock(&self) {
            self.0.acquire();
        }

        /// Takes the lock if it is free, like `RawMutex::try_lock`.
        pub fn try_lock(&self) -> bool {
            self.0.try_acquire()
        }

        /// Releases the lock, like `RawMutex::unlock`.
        ///
        /// # Safety
        ///
        /// The caller holds the lock.
        pub unsafe fn unlock(&self) {
            self.0.release();
        }
    }

    /// The striped lock, with a number as the state of each stripe.
    pub struct StripedModel<T>(super::Striped<T, AtomicU32>);

    impl<T> StripedModel<T> {
        /// Makes a free lock.
        pub fn new(value: T) -> Self {
            StripedModel(super::Striped::new(value))
        }

        /// Runs `run` as a reader with this thread number.
        pub fn read<R>(&self, number: usize, run: impl FnOnce(&T, &AtomicU32) -> R) -> R {
            let reading = self.0.read(number);
            run(&reading, reading.own())
        }

        /// Runs `run` as a writer, with the states of the stripes that may have changed since the
        /// last writer.
        pub fn write<R>(
            &self,
            run: impl FnOnce(&mut T, &mut dyn Iterator<Item = &AtomicU32>) -> R,
        ) -> R {
            let mut writing = self.0.write();
            let (value, mut own) = writing.parts();
            run(value, &mut own)
        }
    }
}

/// The model's mutex with the interface of `lock_api`: it cannot be poisoned.
#[cfg(loom)]
mod model {
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(super::checked::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(super::checked::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> super::checked::MutexGuard<'_, T> {
            self.0.lock().expect("no thread panics under the lock")
        }

        pub(crate) fn try_lock(&self) -> Option<super::checked::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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
