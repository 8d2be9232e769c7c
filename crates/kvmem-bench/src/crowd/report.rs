//! *Report*: what a run found.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::report::Goal;

/// A run: where, with what, and every row. `Display` draws the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report<R> {
    /// Which suite.
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
    pub rows: Vec<R>,
    /// What the library sets out to reach, and whether this run shows it.
    pub goals: Vec<Goal>,
}
