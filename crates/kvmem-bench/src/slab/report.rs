//! *Report*: what a run of the slab suite found.

use serde::{Deserialize, Serialize};

use super::{ContenderId, Pattern};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The pattern.
    pub pattern: Pattern,
    /// Bytes of the largest block; of `fixed`, of every block.
    pub max_block_bytes: u32,
    /// Threads; of `producer-consumer` half of them allocate.
    pub threads: u32,
    /// The contender.
    pub contender: ContenderId,
    /// Nanoseconds of a processor per allocation and free, waiting included; the median of the
    /// repetitions.
    pub ns_per_pair: f64,
    /// Bytes that became resident; the median of the repetitions. `None` where the system does not
    /// tell, or where the measurement had no process of its own.
    pub rss_bytes: Option<u64>,
}

/// A contender that is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Who.
    pub contender: ContenderId,
    /// Why.
    pub reason: String,
}

/// A run: where, with what, and every row. `Display` draws the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which layer: "slab".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Seed of the sizes.
    pub seed: u32,
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
    /// Contenders that are absent.
    pub skipped: Vec<Skipped>,
    /// What the library sets out to reach, and whether this run shows it.
    pub goals: Vec<Goal>,
}
