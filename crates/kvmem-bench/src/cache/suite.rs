//! The suite's parameters and rows.

use super::measure::{CacheTask, measure};
use super::{CacheContenderId, CacheMeasureError, CacheRow, CacheScenario, goals};
use crate::concurrent_suite::suite::Suite;
use crate::report::Goal;
use crate::stats::median;

pub(super) struct Caches;

impl Suite for Caches {
    type Row = CacheRow;
    /// Million calls per second of all threads.
    type Sample = f64;
    type Error = CacheMeasureError;
    const NAME: &'static str = "cache";
    const THREADS: &'static [u32] = &[1, 2, 4];
    const MILLISECONDS: [u64; 2] = [40, 300];

    fn units(milliseconds: u64) -> u64 {
        milliseconds + 80
    }

    fn takes_part(scenario: CacheScenario, contender: CacheContenderId) -> bool {
        contender.takes_part(scenario)
    }

    fn measure(task: &CacheTask) -> Result<f64, CacheMeasureError> {
        measure(task)
    }

    fn row(task: &CacheTask, samples: &[f64]) -> Option<CacheRow> {
        let CacheTask { scenario, contender, threads, .. } = *task;
        let mops = median(samples.to_vec())?;
        Some(CacheRow { scenario, contender, threads, mops, ns: f64::from(threads) * 1e3 / mops })
    }

    fn goals(rows: &[CacheRow], cores: usize) -> Vec<Goal> {
        goals::of(rows, cores)
    }
}
