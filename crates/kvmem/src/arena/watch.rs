//! *Watching*: progress, cancellation and time budget of work that takes a while.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ArenaError;

/// How far populating has come.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes made resident so far. From one report to the next it never falls.
    pub done_bytes: u64,
    /// Bytes that are to be.
    pub total_bytes: u64,
    /// Time since the start.
    pub elapsed: Duration,
    /// What was done last, and is reported by this.
    pub piece: WorkUnit,
}

/// A piece of work that has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkUnit {
    /// Who did it: of populating the number of the thread, of registering that of the registrar,
    /// both from 0.
    pub worker: usize,
    /// When it was begun, by the clock that tells the time of the report.
    pub began: Duration,
    /// When it was done. Its report may come later, and after that of the next piece of the same
    /// worker.
    pub ended: Duration,
}

impl WorkUnit {
    pub(crate) fn new(worker: usize, began: Duration, ended: Duration) -> WorkUnit {
        WorkUnit { worker, began, ended }
    }
}

impl Progress {
    /// Speed so far in GiB/s; 0 before any time has passed.
    #[must_use]
    pub fn gib_per_s(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.done_bytes as f64 / (1u64 << 30) as f64 / seconds } else { 0.0 }
    }

    /// Time left if it goes on like this; `None` before anything is done.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(self.done_bytes) as f64;
        (self.done_bytes > 0)
            .then(|| self.elapsed.as_secs_f64() * left / self.done_bytes as f64)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// A token by which any thread, or a signal handler, can end populating early. Clones are the same
/// token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    used: Arc<AtomicBool>,
    /// With it this one is used too.
    parent: Option<Arc<AtomicBool>>,
}

impl CancelToken {
    /// A token that has not been used.
    #[must_use]
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the work at the next chunk. It cannot be taken back.
    pub fn cancel(&self) {
        // Relaxed: nothing is published with it, and the workers look again soon.
        self.used.store(true, Ordering::Relaxed);
    }

    /// A token of its own, which is used with this one, but not the other way round.
    pub(crate) fn child(&self) -> CancelToken {
        CancelToken { used: Arc::default(), parent: Some(Arc::clone(&self.used)) }
    }

    /// Whether [`cancel`](CancelToken::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: see `cancel`.
        let used = |token: &Arc<AtomicBool>| token.load(Ordering::Relaxed);
        used(&self.used) || self.parent.as_ref().is_some_and(used)
    }
}

/// Who is told of progress.
type Listener = Arc<dyn Fn(Progress) + Send + Sync>;

/// Who watches populating, and how long it may take. The default: nobody, and as long as it takes.
#[derive(Clone, Default)]
pub struct ProgressOptions {
    listener: Option<Listener>,
    cancel: Option<CancelToken>,
    budget: Option<Duration>,
}

impl ProgressOptions {
    /// Nobody watches.
    #[must_use]
    pub fn new() -> ProgressOptions {
        ProgressOptions::default()
    }

    /// Calls `listener` after each chunk (some ten milliseconds of work), from the threads that
    /// populate, one call at a time. A panic in it ends the work and is passed on.
    #[must_use]
    pub fn progress(self, listener: impl Fn(Progress) + Send + Sync + 'static) -> ProgressOptions {
        ProgressOptions { listener: Some(Arc::new(listener)), ..self }
    }

    /// Ends the work with [`ArenaError::Cancelled`] soon after `cancel` is used.
    #[must_use]
    pub fn cancel(self, cancel: CancelToken) -> ProgressOptions {
        ProgressOptions { cancel: Some(cancel), ..self }
    }

    /// Ends the work with [`ArenaError::OverBudget`] soon after this time.
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

/// One piece of watched work.
pub(crate) struct Watched<'a> {
    watch: &'a ProgressOptions,
    /// How long it has been going on.
    elapsed: Box<dyn Fn() -> Duration + Send + Sync + 'a>,
    total: u64,
    /// The count is kept under the lock that reports are made under, so that reports come in
    /// order.
    done: Mutex<u64>,
}

impl<'a> Watched<'a> {
    pub(crate) fn begin(watch: &'a ProgressOptions, total: u64) -> Watched<'a> {
        let start = Instant::now();
        Watched::timed(watch, total, move || start.elapsed())
    }

    /// As [`begin`](Watched::begin), where time is told by another clock.
    pub(crate) fn timed(
        watch: &'a ProgressOptions,
        total: u64,
        elapsed: impl Fn() -> Duration + Send + Sync + 'a,
    ) -> Watched<'a> {
        Watched { watch, elapsed: Box::new(elapsed), total, done: Mutex::new(0) }
    }

    pub(crate) fn done(&self) -> u64 {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are still to be done.
    pub(crate) fn left(&self) -> u64 {
        self.total.saturating_sub(self.done())
    }

    /// Says whether to go on.
    pub(crate) fn go_on(&self) -> Result<(), ArenaError> {
        if self.watch.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            return Err(ArenaError::Cancelled { done: self.done(), total: self.total });
        }
        match self.watch.budget {
            Some(budget) if (self.elapsed)() >= budget => {
                Err(ArenaError::OverBudget { budget, done: self.done(), total: self.total })
            }
            _ => Ok(()),
        }
    }

    /// The time, for [`add`](Watched::add).
    pub(crate) fn now(&self) -> Duration {
        (self.elapsed)()
    }

    /// Counts what `worker` has done since `began`, and reports it.
    pub(crate) fn add(&self, bytes: usize, worker: usize, began: Duration) {
        let piece = WorkUnit::new(worker, began, self.now());
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += bytes as u64;
        if let Some(listener) = &self.watch.listener {
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
    fn speed_and_time_left() {
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
