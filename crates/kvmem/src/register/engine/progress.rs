//! *Progress*: the progress of a run, its listener, and the two ways to end it early.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::arena::{ArenaError, CancelToken, ProgressOptions, WorkUnit};
use crate::register::{Phase, Platform, RegisterError, RegisterProgress};

/// A callback that receives progress.
pub(in crate::register) type RegisterListener = Arc<dyn Fn(RegisterProgress) + Send + Sync>;

/// The user's options for a run: a listener, a token, a time budget.
#[derive(Clone, Default)]
pub(in crate::register) struct RunOptions {
    pub(in crate::register) listener: Option<RegisterListener>,
    pub(in crate::register) cancel: CancelToken,
    pub(in crate::register) budget: Option<Duration>,
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("listener", &self.listener.is_some())
            .field("cancel", &self.cancel)
            .field("budget", &self.budget)
            .finish()
    }
}

/// The progress of one run.
#[derive(Debug)]
pub(in crate::register) struct RunProgress {
    host: Arc<dyn Platform>,
    options: RunOptions,
    start: Duration,
    /// Reports are made under this lock, which keeps them in order.
    counts: Mutex<ProgressCounts>,
    /// Notified when more bytes are ready, and when the work has ended.
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProgressCounts {
    populated: u64,
    to_populate: u64,
    registered: u64,
    to_register: u64,
    ready: u64,
    ended: bool,
}

impl RunProgress {
    pub(in crate::register) fn begin(
        host: Arc<dyn Platform>,
        options: RunOptions,
        to_populate: u64,
        to_register: u64,
    ) -> RunProgress {
        let start = host.now();
        let counts =
            Mutex::new(ProgressCounts { to_populate, to_register, ..ProgressCounts::default() });
        RunProgress { host, options, start, counts, changed: Condvar::new() }
    }

    pub(in crate::register) fn cancel(&self) {
        self.options.cancel.cancel();
    }

    /// Returns an error if the run is cancelled or out of time.
    pub(in crate::register) fn check(&self) -> Result<(), RegisterError> {
        if self.options.cancel.is_cancelled() {
            return Err(self.cancelled());
        }
        match self.options.budget {
            Some(budget) if self.elapsed() >= budget => Err(self.over_budget(budget)),
            _ => Ok(()),
        }
    }

    /// Returns options for populating a range, after `before` bytes in other ranges.
    pub(in crate::register) fn populate_options(self: &Arc<Self>, before: u64) -> ProgressOptions {
        let tracker = Arc::clone(self);
        // Populating measures time from its own start, which is now.
        let from = self.elapsed();
        let watch =
            ProgressOptions::new().cancel(self.options.cancel.clone()).progress(move |progress| {
                let WorkUnit { worker, began, ended } = progress.piece;
                let piece = WorkUnit::new(worker, from + began, from + ended);
                tracker.report(Phase::Populate, piece, |counts| {
                    counts.populated = before + progress.done_bytes
                });
            });
        match self.options.budget {
            Some(budget) => watch.time_budget(budget.saturating_sub(self.elapsed())),
            None => watch,
        }
    }

    /// Turns an error of populating into an error of registering.
    pub(in crate::register) fn convert_error(&self, error: ArenaError) -> RegisterError {
        match (error, self.options.budget) {
            (ArenaError::Cancelled { .. }, _) => self.cancelled(),
            (ArenaError::OverBudget { .. }, Some(budget)) => self.over_budget(budget),
            (error, _) => RegisterError::Populate(error),
        }
    }

    /// Counts a chunk of `bytes` bytes.
    pub(in crate::register) fn registered(&self, bytes: u64, ready: u64, piece: WorkUnit) {
        self.report(Phase::Register, piece, |counts| {
            counts.registered += bytes;
            // Threads arrive here in any order.
            counts.ready = counts.ready.max(ready);
        });
        self.changed.notify_all();
    }

    /// Returns the bytes registered so far.
    pub(in crate::register) fn done(&self) -> u64 {
        self.lock().registered
    }

    /// Returns the bytes, from the beginning, that have keys with all registrars.
    pub(in crate::register) fn ready(&self) -> u64 {
        self.lock().ready
    }

    /// Ends the run. After a failure nothing is ready.
    pub(in crate::register) fn end(&self, succeeded: bool) {
        let mut counts = self.lock();
        counts.ended = true;
        if !succeeded {
            counts.ready = 0;
        }
        drop(counts);
        self.changed.notify_all();
    }

    pub(in crate::register) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits until `bytes` bytes are ready, the work has ended, or `timeout` has passed; returns
    /// the bytes ready then.
    pub(in crate::register) fn wait(&self, bytes: u64, timeout: Duration) -> u64 {
        let pending = |counts: &mut ProgressCounts| counts.ready < bytes && !counts.ended;
        let (counts, _) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, pending)
            .unwrap_or_else(PoisonError::into_inner);
        counts.ready
    }

    /// Returns the progress.
    pub(in crate::register) fn progress(&self) -> RegisterProgress {
        let counts = *self.lock();
        let populating = counts.registered == 0 && counts.populated < counts.to_populate;
        self.describe(if populating { Phase::Populate } else { Phase::Register }, None, &counts)
    }

    fn report(&self, phase: Phase, piece: WorkUnit, count: impl FnOnce(&mut ProgressCounts)) {
        let mut counts = self.lock();
        count(&mut counts);
        if let Some(listener) = &self.options.listener {
            listener(self.describe(phase, Some(piece), &counts));
        }
    }

    fn describe(
        &self,
        phase: Phase,
        piece: Option<WorkUnit>,
        counts: &ProgressCounts,
    ) -> RegisterProgress {
        let (done_bytes, total_bytes) = match phase {
            Phase::Populate => (counts.populated, counts.to_populate),
            _ => (counts.registered, counts.to_register),
        };
        let (ready_bytes, elapsed) = (counts.ready, self.elapsed());
        RegisterProgress { phase, done_bytes, total_bytes, ready_bytes, elapsed, piece }
    }

    fn cancelled(&self) -> RegisterError {
        let counts = self.lock();
        RegisterError::Cancelled { done: counts.registered, total: counts.to_register }
    }

    fn over_budget(&self, budget: Duration) -> RegisterError {
        let counts = self.lock();
        RegisterError::OverBudget { budget, done: counts.registered, total: counts.to_register }
    }

    /// Returns the time since the start of the run.
    pub(in crate::register) fn elapsed(&self) -> Duration {
        self.host.now().saturating_sub(self.start)
    }

    fn lock(&self) -> MutexGuard<'_, ProgressCounts> {
        // A listener may have panicked. Its panic is propagated elsewhere; the counts are intact.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
