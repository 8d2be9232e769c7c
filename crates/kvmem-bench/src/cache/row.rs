//! A row of the cache report.

use serde::{Deserialize, Serialize};

use super::{CacheContenderId, CacheScenario};
use crate::concurrent_suite::{Plot, SuiteRow};

/// One contender in one scenario. Figures are medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheRow {
    /// The scenario.
    pub scenario: CacheScenario,
    /// The contender.
    pub contender: CacheContenderId,
    /// Number of threads that share it.
    pub threads: u32,
    /// Million calls per second of all threads together.
    pub mops: f64,
    /// Nanoseconds of a call in its thread.
    pub ns: f64,
}

impl SuiteRow for CacheRow {
    type Scenario = CacheScenario;
    type Contender = CacheContenderId;
    const CELLS: &'static str = "nanoseconds of a call, and million calls a second of all threads";
    const SECOND: &'static str = "M/s";
    const PLOTS: &'static [Plot<Self>] = &[("A call, less is better", "ns", |row| row.ns)];

    fn scenario(&self) -> CacheScenario {
        self.scenario
    }

    fn contender(&self) -> CacheContenderId {
        self.contender
    }

    fn threads(&self) -> u32 {
        self.threads
    }

    fn cells(&self) -> [String; 2] {
        [format!("{:.1}", self.ns), format!("{:.2}", self.mops)]
    }
}
