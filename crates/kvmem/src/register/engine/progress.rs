//! *Progress*: the phases of a run, its reports, and their listener.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arena::ArenaError;
use crate::register::{Platform, RegisterError};
use crate::threads::{Interruption, Progress, ProgressOptions, WorkBudget, WorkTracker, WorkUnit};

/// A phase of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Memory is made resident.
    Populate,
    /// Memory is registered.
    Register,
    /// Keys are deregistered.
    Deregister,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Populate => "populate",
            Phase::Register => "register",
            Phase::Deregister => "deregister",
        })
    }
}

/// The progress of registering or deregistering.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RegisterProgress {
    /// The current phase.
    pub phase: Phase,
    /// Bytes done in this phase. Registering counts each byte once for each registrar.
    pub done_bytes: u64,
    /// Total bytes of this phase.
    pub total_bytes: u64,
    /// Bytes, from the beginning of the first region, that have keys with all registrars.
    pub ready_bytes: u64,
    /// Time since the start of registering; while deregistering, since the start of that.
    pub elapsed: Duration,
    /// The piece of work that this report is about; `None` if the progress was queried.
    pub piece: Option<WorkUnit>,
}

impl RegisterProgress {
    /// Returns the progress of populating that this is a report of; `None`: of another phase.
    pub(crate) fn populating(&self) -> Option<Progress> {
        let RegisterProgress { done_bytes, total_bytes, elapsed, .. } = *self;
        let piece = self.piece.filter(|_| self.phase == Phase::Populate)?;
        Some(Progress { done_bytes, total_bytes, elapsed, piece })
    }
}

/// A callback that receives progress.
pub(in crate::register) type RegisterListener = Arc<dyn Fn(RegisterProgress) + Send + Sync>;

/// The user's options for a run: a listener, and a token and a limit of time.
#[derive(Clone, Default)]
pub(in crate::register) struct RunOptions {
    pub(in crate::register) listener: Option<RegisterListener>,
    pub(in crate::register) budget: WorkBudget,
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("listener", &self.listener.is_some())
            .field("budget", &self.budget)
            .finish()
    }
}

/// The progress of one run.
pub(in crate::register) struct RunProgress {
    listener: Option<RegisterListener>,
    work: WorkTracker<'static, ProgressCounts>,
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
        let counts = ProgressCounts { to_populate, to_register, ..ProgressCounts::default() };
        let elapsed = move || host.now().saturating_sub(start);
        let work = WorkTracker::begin(options.budget, counts, elapsed);
        RunProgress { listener: options.listener, work }
    }

    pub(in crate::register) fn cancel(&self) {
        self.work.budget().cancel.cancel();
    }

    /// Returns an error if the run is cancelled or out of time.
    pub(in crate::register) fn check(&self) -> Result<(), RegisterError> {
        self.work.check().map_err(|why| self.interrupted(why))
    }

    /// Returns options for populating a range, after `before` bytes in other ranges.
    pub(in crate::register) fn populate_options(self: &Arc<Self>, before: u64) -> ProgressOptions {
        let tracker = Arc::clone(self);
        // Populating measures time from its own start, which is now.
        let from = self.elapsed();
        let options = ProgressOptions::new().budgeted(self.work.budget().remaining(from));
        options.progress(move |progress| {
            let WorkUnit { worker, began, ended } = progress.piece;
            let piece = WorkUnit::new(worker, from + began, from + ended);
            tracker.report(Phase::Populate, piece, |counts| {
                counts.populated = before + progress.done_bytes
            });
        })
    }

    /// Turns an error of populating into an error of registering.
    pub(in crate::register) fn convert_error(&self, error: ArenaError) -> RegisterError {
        match (error, self.work.budget().time) {
            (ArenaError::Cancelled { .. }, _) => self.interrupted(Interruption::Cancelled),
            // Populating had only the rest of the time.
            (ArenaError::OverBudget { .. }, Some(time)) => {
                self.interrupted(Interruption::OutOfTime(time))
            }
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
        self.work.notify();
    }

    /// Returns the bytes registered so far.
    pub(in crate::register) fn done(&self) -> u64 {
        self.work.counts().registered
    }

    /// Returns the bytes, from the beginning, that have keys with all registrars.
    pub(in crate::register) fn ready(&self) -> u64 {
        self.work.counts().ready
    }

    /// Ends the run. After a failure nothing is ready.
    pub(in crate::register) fn end(&self, succeeded: bool) {
        let mut counts = self.work.counts();
        counts.ended = true;
        if !succeeded {
            counts.ready = 0;
        }
        drop(counts);
        self.work.notify();
    }

    pub(in crate::register) fn has_ended(&self) -> bool {
        self.work.counts().ended
    }

    /// Waits until `bytes` bytes are ready, the work has ended, or `timeout` has passed; returns
    /// the bytes ready then.
    pub(in crate::register) fn wait(&self, bytes: u64, timeout: Duration) -> u64 {
        self.work.wait(timeout, |counts| counts.ready < bytes && !counts.ended).ready
    }

    /// Returns the progress.
    pub(in crate::register) fn progress(&self) -> RegisterProgress {
        let counts = *self.work.counts();
        let populating = counts.registered == 0 && counts.populated < counts.to_populate;
        self.describe(if populating { Phase::Populate } else { Phase::Register }, None, &counts)
    }

    fn report(&self, phase: Phase, piece: WorkUnit, count: impl FnOnce(&mut ProgressCounts)) {
        let mut counts = self.work.counts();
        count(&mut counts);
        if let Some(listener) = &self.listener {
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

    fn interrupted(&self, why: Interruption) -> RegisterError {
        let ProgressCounts { registered: done, to_register: total, .. } = *self.work.counts();
        match why {
            Interruption::Cancelled => RegisterError::Cancelled { done, total },
            Interruption::OutOfTime(budget) => RegisterError::OverBudget { budget, done, total },
        }
    }

    /// Returns the time since the start of the run.
    pub(in crate::register) fn elapsed(&self) -> Duration {
        self.work.elapsed()
    }
}
