//! *Steps*: the records that a call reads and copies, counted in tests.
//!
//! A bound of the time that a call holds the lock is a bound of these: the records of ranges and
//! holes that it reads or writes, and the words that it copies when a table grows.

/// Counts steps of this thread.
#[cfg(any(not(test), loom))]
#[inline(always)]
pub(super) fn count(_steps: usize) {}

#[cfg(all(test, not(loom)))]
pub(super) use counted::{count, of};

#[cfg(all(test, not(loom)))]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts steps of this thread.
    pub(in crate::offset) fn count(steps: usize) {
        STEPS.set(STEPS.get() + steps);
    }

    /// The steps that `call` takes, and what it returns.
    pub(in crate::offset) fn of<R>(call: impl FnOnce() -> R) -> (usize, R) {
        let before = STEPS.get();
        let result = call();
        (STEPS.get() - before, result)
    }
}
