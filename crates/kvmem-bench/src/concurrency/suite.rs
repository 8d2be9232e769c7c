//! The suite's parameters and rows.

use super::measure::{ConcurrencySample, ConcurrencyTask, measure};
use super::{ContenderId, MeasureError, Row, Scenario, goals};
use crate::concurrent_suite::suite::Suite;
use crate::report::Goal;
use crate::stats::median;

pub(super) struct Concurrency;

impl Suite for Concurrency {
    type Row = Row;
    type Sample = ConcurrencySample;
    type Error = MeasureError;
    const NAME: &'static str = "concurrency";
    const THREADS: &'static [u32] = &[1, 2, 4, 16];
    const MILLISECONDS: [u64; 2] = [12, 200];

    fn units(milliseconds: u64) -> u64 {
        milliseconds * 3 / 2 + 15
    }

    fn takes_part(_: Scenario, _: ContenderId) -> bool {
        true
    }

    fn measure(task: &ConcurrencyTask) -> Result<ConcurrencySample, MeasureError> {
        measure(task)
    }

    fn row(task: &ConcurrencyTask, samples: &[ConcurrencySample]) -> Option<Row> {
        let of =
            |figure: fn(&ConcurrencySample) -> f64| median(samples.iter().map(figure).collect());
        Some(Row {
            scenario: task.scenario,
            contender: task.contender,
            threads: task.threads,
            mops: of(|one| one.mops)?,
            p50_ns: of(|one| one.p50_ns)?,
            p99_ns: of(|one| one.p99_ns)?,
        })
    }

    fn goals(rows: &[Row], cores: usize) -> Vec<Goal> {
        goals::of(rows, cores)
    }
}
