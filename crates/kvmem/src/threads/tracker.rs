//! *Tracker*: the state of one long work: its budget, its clock, and its counts.
//!
//! Threads count what they have done, and a listener gets reports. Both happen under one lock,
//! which keeps the reports in order.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::budget::{Interruption, WorkBudget};

/// The state of one long work; `C` are its counts.
pub(crate) struct WorkTracker<'a, C> {
    budget: WorkBudget,
    /// Returns the time since the start.
    elapsed: Box<dyn Fn() -> Duration + Send + Sync + 'a>,
    counts: Mutex<C>,
    /// Notified when a count has changed that a thread may wait for.
    changed: Condvar,
}

impl<'a, C> WorkTracker<'a, C> {
    /// Begins work. `elapsed` returns the time since its start.
    pub(crate) fn begin(
        budget: WorkBudget,
        counts: C,
        elapsed: impl Fn() -> Duration + Send + Sync + 'a,
    ) -> WorkTracker<'a, C> {
        WorkTracker {
            budget,
            elapsed: Box::new(elapsed),
            counts: Mutex::new(counts),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn budget(&self) -> &WorkBudget {
        &self.budget
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        (self.elapsed)()
    }

    /// Returns an error if the work is cancelled or out of time.
    pub(crate) fn check(&self) -> Result<(), Interruption> {
        self.budget.check(&self.elapsed)
    }

    /// Returns the counts. A listener that panicked has left them intact.
    pub(crate) fn counts(&self) -> MutexGuard<'_, C> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that [wait](WorkTracker::wait).
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits while `pending` returns true, at most `timeout`. Returns the counts.
    pub(crate) fn wait(
        &self,
        timeout: Duration,
        mut pending: impl FnMut(&C) -> bool,
    ) -> MutexGuard<'_, C> {
        let (counts, _) = self
            .changed
            .wait_timeout_while(self.counts(), timeout, |counts| pending(counts))
            .unwrap_or_else(PoisonError::into_inner);
        counts
    }
}

impl<C: fmt::Debug> fmt::Debug for WorkTracker<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkTracker")
            .field("budget", &self.budget)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
