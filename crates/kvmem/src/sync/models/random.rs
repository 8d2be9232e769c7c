//! *Random schedules*: runs models that have too many threads and steps for loom to check all
//! orders.
//!
//! Half of the schedules are random at every step. The others run one thread for as long as
//! possible, with a few changes at random places, which finds errors that need long runs of one
//! thread. Memory is sequentially consistent here; loom checks weaker orderings.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// The number of schedules of each kind, unless `KVMEM_TEST_ROUNDS` names another.
const SCHEDULES: usize = 1500;
/// Changes of thread in a schedule with long runs.
const CHANGES: usize = 4;

fn schedules() -> usize {
    std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SCHEDULES)
}

/// Runs a test under many schedules. A schedule that fails is printed in full; `shuttle::replay`
/// runs it again.
pub(crate) fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    fn with(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) {
        let mut config = Config::new();
        // Silences the warning that orderings are treated as the strongest one.
        config.silence_warnings = true;
        Runner::new(scheduler, config).run(run);
    }
    with(RandomScheduler::new(schedules()), run.clone());
    with(PctScheduler::new(CHANGES, schedules()), run);
}
