//! The report of an arena run.

use serde::{Deserialize, Serialize};

use super::{ArenaContenderId, Op, Pages};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one operation. A figure that the operation lacks is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaRow {
    /// The operation.
    pub op: Op,
    /// The kind of pages, for operations on pages.
    pub pages: Option<Pages>,
    /// Requested threads; for `kvmem-auto` the number it chose. The library populates with at most
    /// one thread per core.
    pub threads: u32,
    /// Bytes of an allocation or of a mapping.
    pub size_bytes: u64,
    /// The contender.
    pub contender: ArenaContenderId,
    /// Nanoseconds of each thread's processor time per call, or of a whole mapping; the median of
    /// the repetitions.
    pub ns_per_op: Option<f64>,
    /// GiB per second of wall time, populated or returned; the median of the repetitions.
    pub gib_per_s: Option<f64>,
}

/// Rows that this machine cannot measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaSkipped {
    /// The operation.
    pub op: Op,
    /// The kind of pages; all when `None`.
    pub pages: Option<Pages>,
    /// The reason.
    pub reason: String,
}

/// The result of a run: the machine, the settings and every row. `Display` prints the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaReport {
    /// The layer: "arena".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether the run used less memory and fewer repetitions.
    pub quick: bool,
    /// Repetitions of bump loops; figures are medians.
    pub bump_reps: u32,
    /// Repetitions of everything else.
    pub page_reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<ArenaRow>,
    /// Bytes that became resident by mapping 1 TiB, if measured and known to the system.
    pub mapped_resident_bytes: Option<u64>,
    /// Rows that are absent.
    pub skipped: Vec<ArenaSkipped>,
    /// The performance goals, and whether this run meets them.
    pub goals: Vec<Goal>,
}
