//! The report of a run.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::report::Goal;

/// The result of a run: the machine, the settings and every row. `Display` prints the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuiteReport<R> {
    /// The suite.
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether the run was shorter, with fewer repetitions.
    pub quick: bool,
    /// Repetitions of each measurement; figures are medians.
    pub reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<R>,
    /// The performance goals, and whether this run meets them.
    pub goals: Vec<Goal>,
}
