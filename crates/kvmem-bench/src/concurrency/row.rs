//! A row of the concurrency report.

use serde::{Deserialize, Serialize};

use super::{ConcurrencyContenderId, ConcurrencyScenario};
use crate::concurrent_suite::{Plot, SuiteRow};

/// One contender in one scenario. Figures are medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyRow {
    /// The scenario.
    pub scenario: ConcurrencyScenario,
    /// The contender.
    pub contender: ConcurrencyContenderId,
    /// Threads that share the allocator.
    pub threads: u32,
    /// Million calls per second, all threads together: allocations, frees, and failing requests.
    pub mops: f64,
    /// Nanoseconds of wall time that half of the calls do not exceed.
    pub p50_ns: f64,
    /// Nanoseconds that 99 % of the calls do not exceed.
    pub p99_ns: f64,
}

impl SuiteRow for ConcurrencyRow {
    type Scenario = ConcurrencyScenario;
    type Contender = ConcurrencyContenderId;
    const CELLS: &'static str =
        "million calls a second of all threads, and p50 / p99 of a call in ns";
    const SECOND: &'static str = "ns";
    const PLOTS: &'static [Plot<Self>] = &[
        ("All threads together, more is better", "million calls a second", |row| row.mops),
        ("99 % of the calls take no longer, less is better", "ns", |row| row.p99_ns),
    ];

    fn scenario(&self) -> ConcurrencyScenario {
        self.scenario
    }

    fn contender(&self) -> ConcurrencyContenderId {
        self.contender
    }

    fn threads(&self) -> u32 {
        self.threads
    }

    fn cells(&self) -> [String; 2] {
        [format!("{:.2}", self.mops), format!("{:.0} / {:.0}", self.p50_ns, self.p99_ns)]
    }
}
