//! *Report*: what a run of the cache suite found.

use serde::{Deserialize, Serialize};

use super::{ContenderId, Scenario};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one scenario. Figures are medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The scenario.
    pub scenario: Scenario,
    /// The contender.
    pub contender: ContenderId,
    /// Threads that share the cache.
    pub threads: u32,
    /// Million calls a second of all threads together.
    pub mops: f64,
    /// Nanoseconds that a call takes its thread.
    pub ns: f64,
}

/// A run: where, with what, and every row. `Display` draws the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which suite: "cache".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether it was shorter, with fewer repetitions.
    pub quick: bool,
    /// Repetitions of each measurement; figures are medians.
    pub reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Seconds that the whole run took.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<Row>,
    /// What the library sets out to reach, and whether this run shows it.
    pub goals: Vec<Goal>,
}
