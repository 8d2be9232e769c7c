//! *Progress*: what a call that populates has done, and when it ends early.

use std::fmt;
use std::time::{Duration, Instant};

use super::ArenaError;
use crate::threads::{Interruption, Progress, ProgressOptions, WorkTracker, WorkUnit};

/// The progress of one call that obeys [`ProgressOptions`], in bytes.
///
/// An implementation of [`Platform`](crate::register::Platform) with a clock of its own uses it to
/// report progress and to end the work early.
pub struct ProgressTracker<'a> {
    options: &'a ProgressOptions,
    total: u64,
    /// Counts the finished bytes.
    work: WorkTracker<'a, u64>,
}

impl<'a> ProgressTracker<'a> {
    pub(crate) fn begin(options: &'a ProgressOptions, total: u64) -> ProgressTracker<'a> {
        let start = Instant::now();
        ProgressTracker::timed(options, total, move || start.elapsed())
    }

    /// Begins work on `total` bytes. `elapsed` returns the time since the work began.
    pub fn timed(
        options: &'a ProgressOptions,
        total: u64,
        elapsed: impl Fn() -> Duration + Send + Sync + 'a,
    ) -> ProgressTracker<'a> {
        let work = WorkTracker::begin(options.budget().clone(), 0, elapsed);
        ProgressTracker { options, total, work }
    }

    pub(crate) fn done(&self) -> u64 {
        *self.work.counts()
    }

    /// Returns the bytes still to do.
    pub(crate) fn left(&self) -> u64 {
        self.total.saturating_sub(self.done())
    }

    /// Returns an error if the work is cancelled or out of time.
    ///
    /// # Errors
    /// [`ArenaError::Cancelled`] if the token of the options is cancelled;
    /// [`ArenaError::OverBudget`] if their time has passed.
    pub fn go_on(&self) -> Result<(), ArenaError> {
        self.work.check().map_err(|why| {
            let (done, total) = (self.done(), self.total);
            match why {
                Interruption::Cancelled => ArenaError::Cancelled { done, total },
                Interruption::OutOfTime(budget) => ArenaError::OverBudget { budget, done, total },
            }
        })
    }

    /// Returns the time since the work began, for [`add`](ProgressTracker::add).
    #[must_use]
    pub fn now(&self) -> Duration {
        self.work.elapsed()
    }

    /// Counts the bytes that `worker` has finished since `began`, and reports them.
    pub fn add(&self, bytes: usize, worker: usize, began: Duration) {
        let piece = WorkUnit::new(worker, began, self.now());
        let mut done = self.work.counts();
        *done += bytes as u64;
        self.options.report(|| Progress {
            done_bytes: *done,
            total_bytes: self.total,
            elapsed: self.now(),
            piece,
        });
    }
}

impl fmt::Debug for ProgressTracker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressTracker")
            .field("options", &self.options)
            .field("total", &self.total)
            .field("done", &self.done())
            .finish_non_exhaustive()
    }
}
