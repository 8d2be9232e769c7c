//! *Watching*: who is told how far registering has come, and who can end it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Phase, Platform, RegisterError, RegisterProgress};
use crate::arena::{ArenaError, CancelToken, ProgressOptions, WorkUnit};

/// Who is told of progress.
pub(super) type Listener = Arc<dyn Fn(RegisterProgress) + Send + Sync>;

/// What the user wants to know and to bound.
#[derive(Clone, Default)]
pub(super) struct Wishes {
    pub(super) listener: Option<Listener>,
    pub(super) cancel: CancelToken,
    pub(super) budget: Option<Duration>,
}

impl fmt::Debug for Wishes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wishes")
            .field("listener", &self.listener.is_some())
            .field("cancel", &self.cancel)
            .field("budget", &self.budget)
            .finish()
    }
}

/// One piece of watched work.
#[derive(Debug)]
pub(super) struct Watching {
    host: Arc<dyn Platform>,
    wishes: Wishes,
    start: Duration,
    /// The tally is kept under the lock that reports are made under, so that reports come in
    /// order.
    tally: Mutex<Tally>,
    /// Told when more is ready, and when the work has ended.
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    populated: u64,
    to_populate: u64,
    registered: u64,
    to_register: u64,
    ready: u64,
    ended: bool,
}

impl Watching {
    pub(super) fn begin(
        host: Arc<dyn Platform>,
        wishes: Wishes,
        to_populate: u64,
        to_register: u64,
    ) -> Watching {
        let start = host.now();
        let tally = Mutex::new(Tally { to_populate, to_register, ..Tally::default() });
        Watching { host, wishes, start, tally, changed: Condvar::new() }
    }

    pub(super) fn cancel(&self) {
        self.wishes.cancel.cancel();
    }

    /// Says whether to go on.
    pub(super) fn go_on(&self) -> Result<(), RegisterError> {
        if self.wishes.cancel.is_cancelled() {
            return Err(self.cancelled());
        }
        match self.wishes.budget {
            Some(budget) if self.elapsed() >= budget => Err(self.over_budget(budget)),
            _ => Ok(()),
        }
    }

    /// A watch for populating, of which `before` bytes have been done in other ranges.
    pub(super) fn for_populating(self: &Arc<Self>, before: u64) -> ProgressOptions {
        let watching = Arc::clone(self);
        // The watch has a clock of its own, which begins now.
        let from = self.elapsed();
        let watch =
            ProgressOptions::new().cancel(self.wishes.cancel.clone()).progress(move |progress| {
                let WorkUnit { worker, began, ended } = progress.piece;
                let piece = WorkUnit::new(worker, from + began, from + ended);
                watching.report(Phase::Populate, piece, |tally| {
                    tally.populated = before + progress.done_bytes
                });
            });
        match self.wishes.budget {
            Some(budget) => watch.time_budget(budget.saturating_sub(self.elapsed())),
            None => watch,
        }
    }

    /// What an error of populating is for who registers.
    pub(super) fn of_populating(&self, error: ArenaError) -> RegisterError {
        match (error, self.wishes.budget) {
            (ArenaError::Cancelled { .. }, _) => self.cancelled(),
            (ArenaError::OverBudget { .. }, Some(budget)) => self.over_budget(budget),
            (error, _) => RegisterError::Populate(error),
        }
    }

    /// Counts a chunk of so many bytes.
    pub(super) fn registered(&self, bytes: u64, ready: u64, piece: WorkUnit) {
        self.report(Phase::Register, piece, |tally| {
            tally.registered += bytes;
            // Threads come here in any order.
            tally.ready = tally.ready.max(ready);
        });
        self.changed.notify_all();
    }

    /// Bytes registered so far.
    pub(super) fn done(&self) -> u64 {
        self.lock().registered
    }

    /// Bytes, from the beginning, that all registrars have given their keys for.
    pub(super) fn ready(&self) -> u64 {
        self.lock().ready
    }

    /// Nothing more will come. What was ready is not, if all was given back.
    pub(super) fn end(&self, good: bool) {
        let mut tally = self.lock();
        tally.ended = true;
        if !good {
            tally.ready = 0;
        }
        drop(tally);
        self.changed.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits until so many bytes are ready, the work has ended, or the time is over; returns how
    /// many are ready then.
    pub(super) fn wait(&self, bytes: u64, timeout: Duration) -> u64 {
        let waits = |tally: &mut Tally| tally.ready < bytes && !tally.ended;
        let (tally, _) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, waits)
            .unwrap_or_else(PoisonError::into_inner);
        tally.ready
    }

    /// How far it has come.
    pub(super) fn progress(&self) -> RegisterProgress {
        let tally = *self.lock();
        let populating = tally.registered == 0 && tally.populated < tally.to_populate;
        self.describe(if populating { Phase::Populate } else { Phase::Register }, None, &tally)
    }

    fn report(&self, phase: Phase, piece: WorkUnit, count: impl FnOnce(&mut Tally)) {
        let mut tally = self.lock();
        count(&mut tally);
        if let Some(listener) = &self.wishes.listener {
            listener(self.describe(phase, Some(piece), &tally));
        }
    }

    fn describe(&self, phase: Phase, piece: Option<WorkUnit>, tally: &Tally) -> RegisterProgress {
        let (done_bytes, total_bytes) = match phase {
            Phase::Populate => (tally.populated, tally.to_populate),
            _ => (tally.registered, tally.to_register),
        };
        let (ready_bytes, elapsed) = (tally.ready, self.elapsed());
        RegisterProgress { phase, done_bytes, total_bytes, ready_bytes, elapsed, piece }
    }

    fn cancelled(&self) -> RegisterError {
        let tally = self.lock();
        RegisterError::Cancelled { done: tally.registered, total: tally.to_register }
    }

    fn over_budget(&self, budget: Duration) -> RegisterError {
        let tally = self.lock();
        RegisterError::OverBudget { budget, done: tally.registered, total: tally.to_register }
    }

    /// Time since the beginning of all.
    pub(super) fn elapsed(&self) -> Duration {
        self.host.now().saturating_sub(self.start)
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        // A listener may have panicked: its panic is passed on elsewhere, the numbers are whole.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
