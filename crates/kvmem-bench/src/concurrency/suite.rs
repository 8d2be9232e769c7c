//! The suite's parameters and rows.

use super::measure::{ConcurrencySample, ConcurrencyTask, measure};
use super::{
    ConcurrencyContenderId, ConcurrencyMeasureError, ConcurrencyRow, ConcurrencyScenario, goals,
};
use crate::concurrent_suite::suite::Suite;
use crate::report::Goal;
use crate::stats::median;

pub(super) struct Concurrency;

impl Suite for Concurrency {
    type Row = ConcurrencyRow;
    type Sample = ConcurrencySample;
    type Error = ConcurrencyMeasureError;
    const NAME: &'static str = "concurrency";
    const THREADS: &'static [u32] = &[1, 2, 4, 16];
    const MILLISECONDS: [u64; 2] = [12, 200];

    fn units(milliseconds: u64) -> u64 {
        milliseconds * 3 / 2 + 15
    }

    fn takes_part(_: ConcurrencyScenario, _: ConcurrencyContenderId) -> bool {
        true
    }

    fn measure(task: &ConcurrencyTask) -> Result<ConcurrencySample, ConcurrencyMeasureError> {
        measure(task)
    }

    fn row(task: &ConcurrencyTask, samples: &[ConcurrencySample]) -> Option<ConcurrencyRow> {
        let of =
            |figure: fn(&ConcurrencySample) -> f64| median(samples.iter().map(figure).collect());
        Some(ConcurrencyRow {
            scenario: task.scenario,
            contender: task.contender,
            threads: task.threads,
            mops: of(|one| one.mops)?,
            p50_ns: of(|one| one.p50_ns)?,
            p99_ns: of(|one| one.p99_ns)?,
        })
    }

    fn goals(rows: &[ConcurrencyRow], cores: usize) -> Vec<Goal> {
        goals::of(rows, cores)
    }
}
