//! *Team*: threads that register together, on a platform.

use std::time::Duration;

use crate::register::Platform;
use crate::threads::{TeamHost, TeamRun, ThreadTeam};

/// A platform as the host of a team.
struct PlatformHost<'a>(&'a dyn Platform);

impl TeamHost for PlatformHost<'_> {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn gather(&self, threads: usize) {
        self.0.gather(threads);
    }

    fn enter(&self, number: usize) {
        self.0.enter(number);
    }

    fn leave(&self) {
        self.0.leave();
    }
}

/// Calls `lead` with a team on this platform whose threads do `work` in each run; see
/// [`threads::with_team`](crate::threads::with_team).
pub(super) fn with_team<R>(
    host: &dyn Platform,
    work: impl Fn(usize, usize) + Sync,
    lead: impl FnOnce(&mut ThreadTeam<'_, '_>) -> R,
) -> R {
    crate::threads::with_team("kvmem-register", &PlatformHost(host), &work, lead)
}

/// Runs `work` once on a team of `threads` threads; see [`ThreadTeam::run`].
pub(super) fn run_on_team(host: &dyn Platform, threads: usize, work: impl Fn() + Sync) -> TeamRun {
    with_team(host, |_, _| work(), |team| team.run(threads))
}
