//! *Progress*: reports of long work, and the options for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::budget::WorkBudget;
use super::cancel::CancelToken;

/// The progress of populating or registering.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes finished so far. It never decreases from one report to the next.
    pub done_bytes: u64,
    /// Bytes to finish.
    pub total_bytes: u64,
    /// Time since the start.
    pub elapsed: Duration,
    /// The unit of work that this report announces.
    pub piece: WorkUnit,
}

/// A finished unit of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkUnit {
    /// The worker that did it: the number of the thread when populating, of the registrar when
    /// registering, both from 0.
    pub worker: usize,
    /// Its start, by the clock that also gives the time of the report.
    pub began: Duration,
    /// Its end. The report may come later, and after the report of the same worker's next unit.
    pub ended: Duration,
}

impl WorkUnit {
    pub(crate) fn new(worker: usize, began: Duration, ended: Duration) -> WorkUnit {
        WorkUnit { worker, began, ended }
    }
}

impl Progress {
    /// Returns the average speed so far in GiB/s; 0 before any time has passed.
    #[must_use]
    pub fn gib_per_s(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.done_bytes as f64 / (1u64 << 30) as f64 / seconds } else { 0.0 }
    }

    /// Returns the remaining time at the average speed so far; `None` before anything is finished.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(self.done_bytes) as f64;
        (self.done_bytes > 0)
            .then(|| self.elapsed.as_secs_f64() * left / self.done_bytes as f64)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// A callback for progress.
type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

/// The options for long work: a progress callback, a cancel token and a time limit. Default: none
/// of them.
#[derive(Clone, Default)]
pub struct ProgressOptions {
    listener: Option<ProgressListener>,
    budget: WorkBudget,
}

impl ProgressOptions {
    /// Makes options without callback, token and time limit.
    #[must_use]
    pub fn new() -> ProgressOptions {
        ProgressOptions::default()
    }

    /// Calls `listener` after each chunk (some ten milliseconds of work). The calls come from the
    /// working threads, one at a time. A panic in `listener` ends the work and is resumed in the
    /// calling thread.
    #[must_use]
    pub fn progress(self, listener: impl Fn(Progress) + Send + Sync + 'static) -> ProgressOptions {
        ProgressOptions { listener: Some(Arc::new(listener)), ..self }
    }

    /// Ends the work with [`Cancelled`](crate::arena::ArenaError::Cancelled) soon after `cancel` is
    /// cancelled.
    #[must_use]
    pub fn cancel(self, cancel: CancelToken) -> ProgressOptions {
        ProgressOptions { budget: WorkBudget { cancel, ..self.budget }, ..self }
    }

    /// Ends the work with [`OverBudget`](crate::arena::ArenaError::OverBudget) soon after this time
    /// has passed.
    #[must_use]
    pub fn time_budget(self, budget: Duration) -> ProgressOptions {
        ProgressOptions { budget: WorkBudget { time: Some(budget), ..self.budget }, ..self }
    }

    /// Replaces the token and the time limit.
    pub(crate) fn budgeted(self, budget: WorkBudget) -> ProgressOptions {
        ProgressOptions { budget, ..self }
    }

    pub(crate) fn budget(&self) -> &WorkBudget {
        &self.budget
    }

    /// Calls the listener, if there is one, with the progress that `describe` returns.
    pub(crate) fn report(&self, describe: impl FnOnce() -> Progress) {
        if let Some(listener) = &self.listener {
            listener(describe());
        }
    }
}

impl fmt::Debug for ProgressOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressOptions")
            .field("listener", &self.listener.is_some())
            .field("budget", &self.budget)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn speed_and_remaining_time() {
        let at = |done_bytes, seconds| Progress {
            done_bytes,
            total_bytes: 4 << 30,
            elapsed: Duration::from_secs(seconds),
            piece: WorkUnit::new(0, Duration::ZERO, Duration::ZERO),
        };
        assert_eq!(at(1 << 30, 2).gib_per_s(), 0.5);
        assert_eq!(at(1 << 30, 2).left(), Some(Duration::from_secs(6)));
        assert_eq!(at(4 << 30, 2).left(), Some(Duration::ZERO));
        assert_eq!(at(0, 0).gib_per_s(), 0.0);
        assert_eq!(at(0, 5).left(), None);
    }
}
