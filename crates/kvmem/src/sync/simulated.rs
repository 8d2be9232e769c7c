//! *Simulated*: the primitives of a build whose threads run on simulated cores, in virtual time.
//!
//! Under `--cfg kvmem_simulated` a program that links this crate defines the functions of the
//! block [`hooks`]; `kvmem-testkit` does, in its module `cores`. The values are the standard
//! library's, because one thread of the system runs all simulated cores. What differs is time: a
//! read-modify-write, a pause and a nap take the time that the program charges for them. Loads and
//! stores are not wrapped: the compiler reports all of them, those of plain data included.

use std::ops::{Deref, DerefMut};
use std::sync::atomic;
use std::time::Duration;

/// The functions of the program that simulates the cores.
mod hooks {
    unsafe extern "Rust" {
        /// Takes the time of a read-modify-write of the word at this address, or of a fence if that
        /// is null.
        pub(super) safe fn kvmem_simulated_change(at: *const ());
        /// Takes this time without an access.
        pub(super) safe fn kvmem_simulated_wait(nanoseconds: u64);
        /// Takes the time of one pause of a thread that spins.
        pub(super) safe fn kvmem_simulated_pause();
        /// Takes the time of a system call.
        pub(super) safe fn kvmem_simulated_system_call();
        /// Returns the virtual time in nanoseconds.
        pub(super) safe fn kvmem_simulated_now() -> u64;
        /// Returns the number of cores.
        pub(super) safe fn kvmem_simulated_processors() -> usize;
        /// Returns this thread's value under a key; `make` makes it at first, and the second
        /// function that it returns ends it when the thread ends.
        pub(super) safe fn kvmem_simulated_local(
            key: *const (),
            make: &dyn Fn() -> (*mut (), unsafe fn(*mut ())),
        ) -> *mut ();
    }
}

/// Stands for `std::hint`.
pub(crate) mod hint {
    pub(crate) fn spin_loop() {
        super::hooks::kvmem_simulated_pause();
    }
}

/// Stands for `std::thread`.
pub(crate) mod thread {
    pub(crate) fn yield_now() {
        super::hooks::kvmem_simulated_system_call();
    }
}

/// Stands for `std::sync`. The mutex and the condition put threads of the system to sleep, so no
/// simulated thread may wait for them.
pub(crate) mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) mod atomic {
        pub(crate) use super::super::atomics::{
            AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
        };
        pub(crate) use super::super::fence;
        pub(crate) use std::sync::atomic::Ordering;
    }
}

/// Sleeps for this time; the system wakes the thread 50 µs late, as Linux does by default.
pub(crate) fn sleep(time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    hooks::kvmem_simulated_wait(nanoseconds.saturating_add(50_000));
}

/// Takes the time of a system call.
pub(crate) fn system_call() {
    hooks::kvmem_simulated_system_call();
}

/// Returns the number of simulated cores.
pub(crate) fn processors() -> usize {
    hooks::kvmem_simulated_processors()
}

/// Takes the time of a fence. One thread of the system runs all cores, in the order of the program.
pub(crate) fn fence(order: atomic::Ordering) {
    if order == atomic::Ordering::SeqCst {
        hooks::kvmem_simulated_change(std::ptr::null());
    }
}

/// Stands for `std::time::Instant`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(hooks::kvmem_simulated_now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(hooks::kvmem_simulated_now().saturating_sub(self.0))
    }
}

/// Stands for `std::thread::LocalKey`: simulated threads share the thread of the system.
pub(crate) struct PerThread<T: 'static> {
    make: fn() -> T,
}

impl<T> PerThread<T> {
    pub(crate) const fn new(make: fn() -> T) -> Self {
        PerThread { make }
    }

    pub(crate) fn with<R>(&'static self, run: impl FnOnce(&T) -> R) -> R {
        /// # Safety
        ///
        /// The value came from the box of `make`, and no code uses it any more.
        unsafe fn end<T>(value: *mut ()) {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(value.cast::<T>()) });
        }
        let make = || (Box::into_raw(Box::new((self.make)())).cast::<()>(), end::<T> as _);
        let value = hooks::kvmem_simulated_local((&raw const *self).cast(), &make);
        // SAFETY: the key is this static's address, so `make` above has made the value, which lives
        // until the simulated thread ends. Only that thread has it, and only as `&T`.
        run(unsafe { &*value.cast::<T>() })
    }

    pub(crate) fn try_with<R>(
        &'static self,
        run: impl FnOnce(&T) -> R,
    ) -> Result<R, std::convert::Infallible> {
        Ok(self.with(run))
    }
}

/// Wraps an atomic of the standard library: its read-modify-writes take time.
macro_rules! atomic {
    ($name:ident $(<$param:ident>)?, $value:ty, [$($change:ident),*]) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name $(<$param>)? (atomic::$name $(<$param>)?);

        impl $(<$param>)? $name $(<$param>)? {
            pub(crate) const fn new(value: $value) -> Self {
                $name(atomic::$name::new(value))
            }

            #[inline(always)]
            fn charge(&self) {
                hooks::kvmem_simulated_change((&raw const self.0).cast());
            }

            #[inline(always)]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.charge();
                self.0.swap(value, order)
            }

            #[inline(always)]
            pub(crate) fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.charge();
                self.0.compare_exchange(from, to, success, failure)
            }

            #[inline(always)]
            pub(crate) fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }

            #[inline(always)]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut before = self.0.load(fetch);
                while let Some(after) = update(before) {
                    match self.compare_exchange(before, after, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }

            $(
                #[inline(always)]
                pub(crate) fn $change(&self, value: $value, order: Ordering) -> $value {
                    self.charge();
                    self.0.$change(value, order)
                }
            )*
        }

        impl $(<$param>)? Deref for $name $(<$param>)? {
            type Target = atomic::$name $(<$param>)?;

            #[inline(always)]
            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl $(<$param>)? DerefMut for $name $(<$param>)? {
            #[inline(always)]
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }
    };
}

#[allow(dead_code, reason = "each type has all operations of its kind")]
mod atomics {
    use std::sync::atomic::{self, Ordering};

    use super::{Deref, DerefMut, hooks};

    atomic!(AtomicBool, bool, [fetch_and, fetch_or]);
    atomic!(AtomicU32, u32, [fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min]);
    atomic!(AtomicU64, u64, [fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min]);
    atomic!(AtomicUsize, usize, [fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min]);
    atomic!(AtomicPtr<T>, *mut T, []);
}
