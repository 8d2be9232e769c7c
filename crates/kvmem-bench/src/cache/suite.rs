//! The suite's parameters and rows.

use super::measure::{CacheTask, measure};
use super::{ContenderId, MeasureError, Row, Scenario, goals};
use crate::concurrent_suite::suite::Suite;
use crate::report::Goal;
use crate::stats::median;

pub(super) struct Caches;

impl Suite for Caches {
    type Row = Row;
    /// Million calls per second of all threads.
    type Sample = f64;
    type Error = MeasureError;
    const NAME: &'static str = "cache";
    const THREADS: &'static [u32] = &[1, 2, 4];
    const MILLISECONDS: [u64; 2] = [40, 300];

    fn units(milliseconds: u64) -> u64 {
        milliseconds + 80
    }

    fn takes_part(scenario: Scenario, contender: ContenderId) -> bool {
        contender.takes_part(scenario)
    }

    fn measure(task: &CacheTask) -> Result<f64, MeasureError> {
        measure(task)
    }

    fn row(task: &CacheTask, samples: &[f64]) -> Option<Row> {
        let CacheTask { scenario, contender, threads, .. } = *task;
        let mops = median(samples.to_vec())?;
        Some(Row { scenario, contender, threads, mops, ns: f64::from(threads) * 1e3 / mops })
    }

    fn goals(rows: &[Row], cores: usize) -> Vec<Goal> {
        goals::of(rows, cores)
    }
}
