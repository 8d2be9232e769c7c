//! *Report*: what a run of the register suite found.

use serde::{Deserialize, Serialize};

use super::{Backend, ContenderId, Pages};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one cell: medians of the runs that count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What registers.
    pub backend: Backend,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Registrars, each of which gets keys to the whole region.
    pub contexts: u32,
    /// The kind of pages; `None` where they are simulated.
    pub pages: Option<Pages>,
    /// Whether the region was resident before the clock started.
    pub resident: bool,
    /// The contender.
    pub policy: ContenderId,
    /// `sequential` or `parallel`: how most of it was registered, in most of the runs.
    pub chosen: String,
    /// Seconds of populating, where the contender does it.
    pub populate_s: f64,
    /// Seconds of registering, planning and trials included.
    pub register_s: f64,
    /// Seconds until all keys were given back.
    pub unregister_s: f64,
    /// Seconds of all three; a median of its own, so not always the sum of theirs.
    pub total_s: f64,
    /// GiB a second of the first chunks, one registrar after another, where that was tried.
    pub trial_sequential_gib_per_s: Option<f64>,
    /// GiB a second of the first chunks, side by side, where that was tried.
    pub trial_parallel_gib_per_s: Option<f64>,
    /// Runs that count.
    pub runs: u32,
}

/// Rows that this machine cannot have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// What registers.
    pub backend: Backend,
    /// Bytes of the region; all sizes when `None`.
    pub region_bytes: Option<u64>,
    /// The kind of pages; all when `None`.
    pub pages: Option<Pages>,
    /// Registrars; any number when `None`.
    pub contexts: Option<u32>,
    /// Why.
    pub reason: String,
}

/// A run: where, with what, and every row. `Display` draws the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which layer: "register".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether there were fewer cells and rounds.
    pub quick: bool,
    /// Rounds that count, at least; figures are medians.
    pub reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Seconds that the whole run took.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<Row>,
    /// Milliseconds to plan a region of 1 TiB for 8 registrars, where there are that many
    /// addresses.
    pub plan_ms: Option<f64>,
    /// Rows that are absent, and sizes that were made smaller.
    pub skipped: Vec<Skipped>,
    /// What the library sets out to reach, and whether this run shows it.
    pub goals: Vec<Goal>,
}
