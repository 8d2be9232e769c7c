//! *Team*: threads that register together, timed by the clock of their platform.

use std::cell::Cell;
use std::time::Duration;

use crate::register::Platform;
use crate::threads;

/// A team of threads, led by the calling one.
pub(in crate::register) struct TimedTeam<'a, 'scope, 'env> {
    host: &'a dyn Platform,
    team: &'a mut threads::ThreadTeam<'scope, 'env>,
}

/// Calls `lead` with a team whose threads do `work` in each run; see [`threads::with_team`].
pub(in crate::register) fn with_team<R>(
    host: &dyn Platform,
    work: impl Fn() + Sync,
    lead: impl FnOnce(&mut TimedTeam<'_, '_, '_>) -> R,
) -> R {
    let participate = |number, threads| {
        let _guard = (threads > 1).then(|| GatheredThread::enter(host, number));
        work();
    };
    threads::with_team("kvmem-register", &participate, |team| lead(&mut TimedTeam { host, team }))
}

/// Runs `work` once on a team of `threads` threads; see [`TimedTeam::run`].
pub(in crate::register) fn run_on_team(
    host: &dyn Platform,
    threads: usize,
    work: impl Fn() + Sync,
) -> (usize, f64) {
    with_team(host, work, |team| team.run(threads))
}

impl TimedTeam<'_, '_, '_> {
    /// Runs the work on `threads` threads, the leader included, or on fewer if they cannot be
    /// created. Returns their number, and the seconds that it took by the clock of the platform.
    pub(in crate::register) fn run(&mut self, threads: usize) -> (usize, f64) {
        let start = Cell::new(Duration::ZERO);
        let threads = self.team.run(threads, |threads| {
            start.set(self.host.now());
            if threads > 1 {
                self.host.gather(threads);
            }
        });
        (threads, seconds(self.host.now().saturating_sub(start.get())))
    }

    /// Ends all threads but `threads`.
    pub(in crate::register) fn shrink(&mut self, threads: usize) {
        self.team.shrink(threads);
    }
}

/// A participating thread. It leaves even if it panics: the others wait for it.
struct GatheredThread<'a>(&'a dyn Platform);

impl<'a> GatheredThread<'a> {
    fn enter(host: &'a dyn Platform, number: usize) -> GatheredThread<'a> {
        host.enter(number);
        GatheredThread(host)
    }
}

impl Drop for GatheredThread<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Returns the seconds, at least 1 ns: a coarse clock may show no time for work that was done.
fn seconds(took: Duration) -> f64 {
    took.as_secs_f64().max(1e-9)
}
