//! How full a pool can be when nothing is evicted.
//!
//! A run of [`Bimodal`] is laid down first, so its peak of live bytes is known whatever the allocator does. The *live
//! fraction* is that peak over the pool: the same run is replayed in smaller and smaller pools. An object that does
//! not fit is given up, and the run goes on without it. Reported is the highest live fraction, in steps of 0.01 from
//! 1.00 downwards, at which no object fails, and at which at most one payload in 10,000 does.

use kvmem_testkit::workload::{Bimodal, METADATA_SIZES, PAYLOADS};

use super::LoopError;
use crate::contender::{Contender, Space};

/// Failures of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Payloads asked for until the replay ended.
    pub payloads: u64,
    /// Payloads that did not fit.
    pub payloads_failed: u64,
    /// Metadata objects that did not fit.
    pub metadata_failed: u64,
}

impl Failures {
    /// Share of payloads that failed.
    pub fn payload_rate(&self) -> f64 {
        self.payloads_failed as f64 / self.payloads.max(1) as f64
    }
}

/// Replays `run` in `pool` bytes; stops early once more than `give_up_after` payloads have failed.
pub fn replay<C: Contender>(run: &Bimodal, pool: u64, give_up_after: u64) -> Result<Failures, LoopError> {
    let space = C::create(Space::for_sizes_from(METADATA_SIZES[0], pool))?;
    // For each producer the handles that fall due at its step number modulo four.
    let mut due: Vec<[Vec<C::Handle>; 4]> = Vec::new();
    due.resize_with(run.producers(), Default::default);
    let mut failures = Failures::default();
    for (turn, step) in run.steps().iter().enumerate() {
        let now = turn / run.producers();
        let due = &mut due[step.producer];
        due[now % 4].clear();
        for (i, object) in step.objects.iter().enumerate() {
            match space.allocate(u64::from(object.size)) {
                Some(handle) => due[(now + usize::from(object.life)) % 4].push(handle),
                None if i < PAYLOADS => failures.payloads_failed += 1,
                None => failures.metadata_failed += 1,
            }
        }
        failures.payloads += PAYLOADS as u64;
        if failures.payloads_failed > give_up_after {
            break;
        }
    }
    Ok(failures)
}

/// Steps of the grid of live fractions.
const GRID: u64 = 100;

/// The highest live fractions that hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Highest {
    /// Without any failure.
    pub no_failure: f64,
    /// With at most one payload in 10,000 failed.
    pub few_failures: f64,
}

/// The pool in which the peak of `run` is `percent` hundredths.
pub fn pool_for(run: &Bimodal, percent: u64) -> u64 {
    run.peak_bytes() * GRID / percent
}

/// Walks down the grid from 1.00. Whether a fraction holds does not follow from one below it, so each is tried.
pub fn highest<C: Contender>(run: &Bimodal) -> Result<Highest, LoopError> {
    let payloads = (run.steps().len() * PAYLOADS) as u64;
    let allowed = payloads / 10_000;
    let mut highest = Highest::default();
    for percent in (1..=GRID).rev() {
        let fraction = percent as f64 / GRID as f64;
        let failures = replay::<C>(run, pool_for(run, percent), allowed)?;
        if failures.payloads_failed <= allowed && highest.few_failures == 0.0 {
            highest.few_failures = fraction;
        }
        if failures.payloads_failed + failures.metadata_failed == 0 {
            highest.no_failure = fraction;
            break;
        }
    }
    Ok(highest)
}
