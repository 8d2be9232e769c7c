//! Random schedules of the concurrent parts, where there are too many threads and steps for
//! `tests/loom` to try all.
//!
//! `RUSTFLAGS="--cfg loom --cfg shuttle" cargo test --release -p kvmem --test shuttle`; without the
//! flags there is nothing here. The first builds the model, the second puts shuttle under it
//! instead of loom. Half of the schedules are random at every step; the others run one thread as
//! long as it can, with a few changes at random places, which finds what needs long stretches.
//! Memory is sequentially consistent here: what weaker orderings do is loom's to find.
#![cfg(shuttle)]

mod leases;
mod owner;
mod slab;
mod striped;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Schedules of each kind.
const SCHEDULES: usize = 4000;
/// Changes of thread in a schedule of long stretches.
const CHANGES: usize = 4;

/// Runs a test under many schedules. One that fails is printed in full; `shuttle::replay` runs it
/// again.
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    fn with(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) {
        let mut config = Config::new();
        // That orderings are taken for the strongest is said above.
        config.silence_warnings = true;
        Runner::new(scheduler, config).run(run);
    }
    with(RandomScheduler::new(SCHEDULES), run.clone());
    with(PctScheduler::new(CHANGES, SCHEDULES), run);
}
