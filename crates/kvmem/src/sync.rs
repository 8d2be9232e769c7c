//! Atomics and the lock: the usual ones, or loom's under `--cfg loom`; or shuttle's where `--cfg
//! shuttle` is said as well.
//!
//! ## The lock
//!
//! Books are changed in a few dozen nanoseconds; what a lock costs when nobody else wants it is
//! then a good part of an allocation. Taking a lock needs one atomic read-modify-write, which
//! drains the processor's store buffer and keeps later loads waiting. Locks that put waiters to
//! sleep in a queue need a second one to let go, because the releasing thread must not miss a
//! waiter that is just going to sleep. [`RawLock`] lets go with a plain store: waiters spin for
//! about as long as the books are held, then yield, then sleep for short spells, and look again
//! by themselves. Uncontended, that is 5 ns instead of 10 on the machine this was measured on; next
//! to cache misses it is more, for the stores of one operation then overlap with the loads of the
//! next. The price is paid only when the holder loses its processor: a waiter may then come up to
//! [`NAP`] late.

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
pub use self::append_only::{FIRST, Stable};
#[cfg(not(loom))]
pub(crate) use self::striped::thread_number;
pub(crate) use self::striped::{Striped, Writing};

use std::time::Duration;

/// A mutex for short critical sections; it cannot be poisoned.
#[cfg(not(loom))]
pub(crate) type Mutex<T> = lock_api::Mutex<RawLock, T>;

/// What has it.
#[cfg(not(loom))]
type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;
#[cfg(loom)]
type MutexGuard<'a, T> = checked::MutexGuard<'a, T>;

/// Looks at a held lock before the waiter yields its processor. Few for the model, which tries all
/// orders of them.
const SPINS: u32 = if cfg!(loom) { 2 } else { 100 };
/// Looks before the waiter sleeps.
const SPINS_AND_YIELDS: u32 = if cfg!(loom) { 3 } else { 150 };
/// How long it sleeps between looks.
const NAP: Duration = Duration::from_micros(50);

/// A lock that is let go of by a plain store.
pub(crate) struct RawLock {
    held: AtomicBool,
    /// The holder has no guard: it is about to fork, or was forked just now.
    #[cfg(not(loom))]
    over_fork: AtomicBool,
}

impl RawLock {
    /// Nobody has it.
    fn free() -> Self {
        RawLock {
            held: AtomicBool::new(false),
            #[cfg(not(loom))]
            over_fork: AtomicBool::new(false),
        }
    }

    /// Takes the lock, waiting as long as another has it.
    #[inline]
    fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    /// Takes the lock unless another has it.
    #[inline]
    #[cfg(not(loom))]
    fn try_acquire(&self) -> bool {
        // Acquire pairs with the Release in `release`: what the last holder wrote is seen.
        !self.held.swap(true, Ordering::Acquire)
    }

    /// As above. A swap that finds `true` stores what was there, at once after it; loom lets other
    /// stores come between the two, so that the holder's `false` could come before the waiter's
    /// `true`, and all would wait for ever. So in the model a swap that finds `true` stores
    /// nothing.
    #[cfg(loom)]
    fn try_acquire(&self) -> bool {
        // Acquire pairs with the Release in `release`, as above. Relaxed: nothing was taken.
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Lets go of the lock, which the caller has.
    #[inline]
    fn release(&self) {
        // Release pairs with the Acquire in `try_acquire`.
        self.held.store(false, Ordering::Release);
    }

    #[cold]
    fn wait(&self) {
        let mut backoff = Backoff::default();
        loop {
            // Relaxed: only a hint when to try; `try_acquire` is what acquires.
            while self.held.load(Ordering::Relaxed) {
                backoff.pause();
            }
            if self.try_acquire() {
                return;
            }
        }
    }
}

/// Figures that change together, one writer at a time, and are read without a lock by who can do
/// with figures of two moments if there is no end to the changes.
pub(crate) struct Together {
    /// Odd while they change.
    changes: AtomicU64,
}

/// Looks at figures that are being changed.
#[cfg(not(loom))]
const LOOKS: usize = 100;

impl Together {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Together { changes: AtomicU64::new(0) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Together { changes: AtomicU64::new(0) }
    }

    /// Runs `change`, which stores them. The caller has a lock that all writers take.
    pub(crate) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        // Relaxed, both: one writer at a time; the fence.
        let before = self.changes.load(Ordering::Relaxed);
        self.changes.store(before.wrapping_add(1), Ordering::Relaxed);
        // Release pairs with the Acquire fence in `look`: who sees what follows sees the number
        // odd, or a later one.
        fence(Ordering::Release);
        let done = change();
        // Release pairs with the Acquire load in `look`: who sees it sees all of what was stored.
        self.changes.store(before.wrapping_add(2), Ordering::Release);
        done
    }

    /// What `look` loads, as it was together if that can be had soon. Never waits for a writer that
    /// does not go on.
    #[cfg(not(loom))]
    pub(crate) fn look<T>(&self, look: impl Fn() -> T) -> T {
        let mut looks = 0;
        loop {
            // Acquire pairs with the Release at the end of `change`.
            let before = self.changes.load(Ordering::Acquire);
            let found = look();
            // Acquire pairs with the Release fence in `change`.
            fence(Ordering::Acquire);
            // Relaxed: the fence.
            let whole = before.is_multiple_of(2) && before == self.changes.load(Ordering::Relaxed);
            looks += 1;
            if whole || looks == LOOKS {
                return found;
            }
            hint::spin_loop();
        }
    }
}

/// What a thread does between two looks at something that another is about to change.
#[derive(Default)]
pub(crate) struct Backoff {
    looks: u32,
}

impl Backoff {
    /// Spins at first, then lets others run, then sleeps for short spells.
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

/// A model has no time: to sleep is to let the others go first.
#[cfg(loom)]
fn nap() {
    thread::yield_now();
}

// SAFETY: `acquire` and `try_acquire` return having the lock only if their swap changed `held` from false
// to true. Between two such swaps somebody stored false, which only `release` does, and its caller
// had the lock: so there is one holder at a time.
#[cfg(not(loom))]
unsafe impl lock_api::RawMutex for RawLock {
    // The constant is only ever used to make new locks of.
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

/// Takes a lock before a fork, without a guard: [`release_over_fork`] releases it in the parent and
/// in the child.
#[cfg(not(loom))]
pub(crate) fn hold_over_fork<T>(mutex: &Mutex<T>) {
    std::mem::forget(mutex.lock());
    // SAFETY: the lock under the mutex is not released here.
    let lock = unsafe { mutex.raw() };
    // Relaxed: `release_over_fork` reads it in the same thread, or in that thread's copy in the
    // child.
    lock.over_fork.store(true, Ordering::Relaxed);
}

/// Releases a lock that [`hold_over_fork`] took; does nothing to any other.
#[cfg(not(loom))]
pub(crate) fn release_over_fork<T>(mutex: &Mutex<T>) {
    // SAFETY: the lock under the mutex is released below only if no guard of it exists.
    let lock = unsafe { mutex.raw() };
    // Relaxed: as above.
    if lock.over_fork.swap(false, Ordering::Relaxed) {
        // SAFETY: the mark says that the lock is held and that its guard was forgotten; this call
        // alone took the mark away.
        unsafe { mutex.force_unlock() };
    }
}

/// The locks alone, for the model checks in `tests/loom` and `tests/shuttle`: loom's atomics cannot
/// be made in constants, which `lock_api` asks for.
#[cfg(loom)]
pub mod loom_face {
    use super::{AtomicU32, RawLock};

    /// The lock under every [`Mutex`](super::Mutex) outside of the model.
    pub struct Lock(RawLock);

    impl Lock {
        /// A lock that nobody has.
        #[allow(clippy::new_without_default)]
        pub fn new() -> Self {
            Lock(RawLock::free())
        }

        /// As `RawMutex::lock`.
        pub fn lock(&self) {
            self.0.acquire();
        }

        /// As `RawMutex::try_lock`.
        pub fn try_lock(&self) -> bool {
            self.0.try_acquire()
        }

        /// As `RawMutex::unlock`.
        ///
        /// # Safety
        ///
        /// The caller has the lock.
        pub unsafe fn unlock(&self) {
            self.0.release();
        }
    }

    /// The lock that many read. Each stripe has a number of its own.
    pub struct Striped<T>(super::Striped<T, AtomicU32>);

    impl<T> Striped<T> {
        /// A lock that nobody has.
        pub fn new(value: T) -> Self {
            Striped(super::Striped::new(value))
        }

        /// Runs as a reader with this number.
        pub fn read<R>(&self, number: usize, run: impl FnOnce(&T, &AtomicU32) -> R) -> R {
            let reading = self.0.read(number);
            run(&reading, reading.own())
        }

        /// Runs as a writer, with the numbers of those stripes that may have changed since the
        /// last.
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

/// The model's mutex with parking_lot's face: a lock that cannot be poisoned.
#[cfg(loom)]
mod model {
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(super::checked::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(super::checked::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> super::checked::MutexGuard<'_, T> {
            self.0.lock().expect("no panic happens under the lock")
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
        // The guard's lock is not one that was held over a fork.
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
