//! A row of the cache report.

use serde::{Deserialize, Serialize};

use super::{ContenderId, Scenario};
use crate::concurrent_suite::{Plot, SuiteRow};

/// One contender in one scenario. Figures are medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The scenario.
    pub scenario: Scenario,
    /// The contender.
    pub contender: ContenderId,
    /// Number of threads that share it.
    pub threads: u32,
    /// Million calls per second of all threads together.
    pub mops: f64,
    /// Nanoseconds of a call in its thread.
    pub ns: f64,
}

impl SuiteRow for Row {
    type Scenario = Scenario;
    type Contender = ContenderId;
    const CELLS: &'static str = "nanoseconds of a call, and million calls a second of all threads";
    const SECOND: &'static str = "M/s";
    const PLOTS: &'static [Plot<Self>] = &[("A call, less is better", "ns", |row| row.ns)];

    fn scenario(&self) -> Scenario {
        self.scenario
    }

    fn contender(&self) -> ContenderId {
        self.contender
    }

    fn threads(&self) -> u32 {
        self.threads
    }

    fn cells(&self) -> [String; 2] {
        [format!("{:.1}", self.ns), format!("{:.2}", self.mops)]
    }
}
