//! *Crew*: threads that register together, by the clock of their host.

use std::cell::Cell;
use std::time::Duration;

use super::Platform;
use crate::arena;

/// Threads of which the calling one is the leader.
pub(super) struct Crew<'a, 'scope, 'env> {
    host: &'a dyn Platform,
    crew: &'a mut arena::Crew<'scope, 'env>,
}

/// Leads a crew that does `work` in each sweep; see [`arena::lead`].
pub(super) fn lead<R>(
    host: &dyn Platform,
    work: impl Fn() + Sync,
    lead: impl FnOnce(&mut Crew<'_, '_, '_>) -> R,
) -> R {
    let take_part = |number, threads| {
        let _present = (threads > 1).then(|| Present::enter(host, number));
        work();
    };
    arena::lead("kvmem-register", &take_part, |crew| lead(&mut Crew { host, crew }))
}

/// One sweep on so many threads; see [`Crew::sweep`].
pub(super) fn together(
    host: &dyn Platform,
    threads: usize,
    work: impl Fn() + Sync,
) -> (usize, f64) {
    lead(host, work, |crew| crew.sweep(threads))
}

impl Crew<'_, '_, '_> {
    /// Has so many threads work, the leader among them, or fewer if they cannot be had. Returns how
    /// many they were, and how many seconds it took by the clock of the host.
    pub(super) fn sweep(&mut self, threads: usize) -> (usize, f64) {
        let start = Cell::new(Duration::ZERO);
        let threads = self.crew.sweep(threads, |threads| {
            start.set(self.host.now());
            if threads > 1 {
                self.host.gather(threads);
            }
        });
        (threads, seconds(self.host.now().saturating_sub(start.get())))
    }

    /// Sends home all but so many.
    pub(super) fn shrink(&mut self, threads: usize) {
        self.crew.shrink(threads);
    }
}

/// A thread that takes part. It leaves in any case, for others wait for it.
struct Present<'a>(&'a dyn Platform);

impl<'a> Present<'a> {
    fn enter(host: &'a dyn Platform, number: usize) -> Present<'a> {
        host.enter(number);
        Present(host)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A clock may be too coarse to see it; work that was done took some time.
fn seconds(took: Duration) -> f64 {
    took.as_secs_f64().max(1e-9)
}
