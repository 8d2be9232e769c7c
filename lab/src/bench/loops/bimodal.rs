//! The highest fill of a pool when nothing is evicted.
//!
//! A run of [`Bimodal`] is generated first, so its peak of live bytes is known independently of the
//! allocator. The *live fraction* is that peak over the pool: the same run is replayed in smaller
//! and smaller pools. An object that does not fit is dropped, and the run continues without it. The
//! loop reports the highest live fraction, in steps of 0.01 from 1.00 downwards, at which no object
//! fails, and the highest at which at most one payload in 10,000 fails.
//!
//! The peak is a rare moment. The longer the run, the further the peak exceeds the rest, and the
//! higher are the fractions of an allocator that copes with the rest. Compare fractions only at
//! equal numbers of payloads.

use anyhow::Result;
use kvmem_testkit::workload::{Bimodal, Calendar, PAYLOADS};

use crate::bench::contender::{Contender, Space};

/// Failures of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Payloads that did not fit.
    pub payloads: u64,
    /// Metadata objects that did not fit.
    pub metadata: u64,
}

impl Failures {
    fn any(&self) -> bool {
        self.payloads + self.metadata > 0
    }
}

/// Returns the share of the payloads of `run` that fail in a pool of `pool` bytes.
pub fn fail_rate<C: Contender>(run: &Bimodal, pool: u64) -> Result<f64> {
    Ok(replay::<C>(run, pool, |_| false)?.payloads as f64 / run.payloads() as f64)
}

/// Replays `run` in `pool` bytes; stops early once `enough` returns true for the failures so far.
pub fn replay<C: Contender>(
    run: &Bimodal,
    pool: u64,
    enough: impl Fn(&Failures) -> bool,
) -> Result<Failures> {
    let space = C::create(Space { capacity: pool, max_live: run.max_live() })?;
    let mut due = Calendar::<Vec<C::Handle>>::default();
    let mut failures = Failures::default();
    for step in run.steps() {
        due.now().clear();
        for batch in step {
            for (i, object) in batch.iter().enumerate() {
                match space.allocate(u64::from(object.size)) {
                    Some(handle) => due.in_steps(object.life).push(handle),
                    None if i < PAYLOADS => failures.payloads += 1,
                    None => failures.metadata += 1,
                }
            }
        }
        if enough(&failures) {
            break;
        }
        due.next();
    }
    Ok(failures)
}

/// Steps between live fractions 0 and 1.
const GRID: u64 = 100;

/// The highest live fractions that meet a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HighestLive {
    /// Without any failure.
    pub no_failure: f64,
    /// With at most one payload in 10,000 failed.
    pub few_failures: f64,
}

/// Returns the pool in which the peak of `run` is `percent` hundredths.
pub fn pool_for(run: &Bimodal, percent: u64) -> u64 {
    run.peak_bytes() * GRID / percent
}

/// Finds the highest live fractions, from 1.00 downwards. A condition can hold at one fraction and
/// not at a lower one, so each is tried, but a replay ends at the failure that decides.
pub fn highest<C: Contender>(run: &Bimodal) -> Result<HighestLive> {
    let allowed = run.payloads() / 10_000;
    let mut few = None;
    for percent in (1..=GRID).rev() {
        let fraction = percent as f64 / GRID as f64;
        let searching = few.is_none();
        let failures = replay::<C>(run, pool_for(run, percent), |failures| {
            if searching { failures.payloads > allowed } else { failures.any() }
        })?;
        if searching && failures.payloads <= allowed {
            few = Some(fraction);
        }
        if !failures.any() {
            return Ok(HighestLive { no_failure: fraction, few_failures: few.unwrap_or(fraction) });
        }
    }
    Ok(HighestLive { no_failure: 0.0, few_failures: few.unwrap_or(0.0) })
}
