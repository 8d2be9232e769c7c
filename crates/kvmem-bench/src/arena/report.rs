//! *Report*: what a run of the arena suite found.

use serde::{Deserialize, Serialize};

use super::{ContenderId, Op, Pages};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one operation. A figure that the operation does not have is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// The kind of pages, where there are pages.
    pub pages: Option<Pages>,
    /// Threads asked for; of `kvmem-auto` those it chose. The library populates with no more than
    /// there are cores.
    pub threads: u32,
    /// Bytes of an allocation, or of what was mapped.
    pub size_bytes: u64,
    /// The contender.
    pub contender: ContenderId,
    /// Nanoseconds of each thread's processor time per call, or of a whole mapping; the median of
    /// the repetitions.
    pub ns_per_op: Option<f64>,
    /// GiB a second made resident or given back, by the clock on the wall; the median of the
    /// repetitions.
    pub gib_per_s: Option<f64>,
}

/// Rows that this machine cannot have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The operation.
    pub op: Op,
    /// The kind of pages; all when `None`.
    pub pages: Option<Pages>,
    /// Why.
    pub reason: String,
}

/// A run: where, with what, and every row. `Display` draws the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which layer: "arena".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether there was less memory and fewer repetitions.
    pub quick: bool,
    /// Repetitions of bump loops; figures are medians.
    pub bump_reps: u32,
    /// Repetitions of everything else.
    pub page_reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Seconds that the whole run took.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<Row>,
    /// Bytes that mapping 1 TiB made resident, where it was measured and the system tells.
    pub mapped_resident_bytes: Option<u64>,
    /// Rows that are absent.
    pub skipped: Vec<Skipped>,
    /// What the library sets out to reach, and whether this run shows it.
    pub goals: Vec<Goal>,
}
