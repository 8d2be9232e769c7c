//! *Progress*: reports, cancellation and time limit of long work.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ArenaError;

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

/// A token by which any thread, or a signal handler, can end work early. Clones are the same token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    /// Cancelling the parent cancels this token too.
    parent: Option<Arc<AtomicBool>>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    #[must_use]
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels the work at its next chunk. This cannot be undone.
    pub fn cancel(&self) {
        // Relaxed: it publishes nothing, and the workers check again soon.
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Makes a token that is cancelled together with this one, but not the other way round.
    pub(crate) fn child(&self) -> CancelToken {
        CancelToken { cancelled: Arc::default(), parent: Some(Arc::clone(&self.cancelled)) }
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called on this token or its parent.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: it publishes nothing; see `cancel`.
        let cancelled = |token: &Arc<AtomicBool>| token.load(Ordering::Relaxed);
        cancelled(&self.cancelled) || self.parent.as_ref().is_some_and(cancelled)
    }
}

/// A callback for progress.
type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

/// The options for long work: a progress callback, a cancel token and a time limit. Default: none
/// of them.
#[derive(Clone, Default)]
pub struct ProgressOptions {
    listener: Option<ProgressListener>,
    cancel: Option<CancelToken>,
    budget: Option<Duration>,
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

    /// Ends the work with [`ArenaError::Cancelled`] soon after `cancel` is cancelled.
    #[must_use]
    pub fn cancel(self, cancel: CancelToken) -> ProgressOptions {
        ProgressOptions { cancel: Some(cancel), ..self }
    }

    /// Ends the work with [`ArenaError::OverBudget`] soon after this time has passed.
    #[must_use]
    pub fn time_budget(self, budget: Duration) -> ProgressOptions {
        ProgressOptions { budget: Some(budget), ..self }
    }
}

impl fmt::Debug for ProgressOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("listener", &self.listener.is_some())
            .field("cancel", &self.cancel)
            .field("budget", &self.budget)
            .finish()
    }
}

/// The progress of one call that obeys [`ProgressOptions`].
///
/// An implementation of [`Platform`](crate::register::Platform) with a clock of its own uses it to
/// report progress and to end the work early.
pub struct ProgressTracker<'a> {
    options: &'a ProgressOptions,
    /// Returns the time since the start.
    elapsed: Box<dyn Fn() -> Duration + Send + Sync + 'a>,
    total: u64,
    /// Finished bytes. Reports are made under the same lock, so they come in order.
    done: Mutex<u64>,
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
        ProgressTracker { options, elapsed: Box::new(elapsed), total, done: Mutex::new(0) }
    }

    pub(crate) fn done(&self) -> u64 {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
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
        if self.options.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            return Err(ArenaError::Cancelled { done: self.done(), total: self.total });
        }
        match self.options.budget {
            Some(budget) if (self.elapsed)() >= budget => {
                Err(ArenaError::OverBudget { budget, done: self.done(), total: self.total })
            }
            _ => Ok(()),
        }
    }

    /// Returns the time since the work began, for [`add`](ProgressTracker::add).
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.elapsed)()
    }

    /// Counts the bytes that `worker` has finished since `began`, and reports them.
    pub fn add(&self, bytes: usize, worker: usize, began: Duration) {
        let piece = WorkUnit::new(worker, began, self.now());
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += bytes as u64;
        if let Some(listener) = &self.options.listener {
            listener(Progress {
                done_bytes: *done,
                total_bytes: self.total,
                elapsed: self.now(),
                piece,
            });
        }
    }
}

#[cfg(test)]
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
