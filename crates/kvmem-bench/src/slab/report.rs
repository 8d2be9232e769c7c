//! The report of a slab run.

use serde::{Deserialize, Serialize};

use super::{Pattern, SlabContenderId};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlabRow {
    /// The pattern.
    pub pattern: Pattern,
    /// Bytes of the largest block; in `fixed`, of every block.
    pub max_block_bytes: u32,
    /// Threads; in `producer-consumer` half of them allocate.
    pub threads: u32,
    /// The contender.
    pub contender: SlabContenderId,
    /// Nanoseconds of a processor per allocation and free, waiting included; the median of the
    /// repetitions.
    pub ns_per_pair: f64,
    /// Bytes that became resident; the median of the repetitions. `None` if the system does not
    /// report them, or if the measurement had no process of its own.
    pub rss_bytes: Option<u64>,
}

/// An absent contender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabSkipped {
    /// The contender.
    pub contender: SlabContenderId,
    /// The reason.
    pub reason: String,
}

/// The result of a run: the machine, the settings and every row. `Display` prints the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlabReport {
    /// The layer: "slab".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Seed of the sizes.
    pub seed: u32,
    /// Whether the run was shorter, with fewer repetitions.
    pub quick: bool,
    /// Repetitions of each measurement; figures are medians.
    pub reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<SlabRow>,
    /// Absent contenders.
    pub skipped: Vec<SlabSkipped>,
    /// The performance goals, and whether this run meets them.
    pub goals: Vec<Goal>,
}
