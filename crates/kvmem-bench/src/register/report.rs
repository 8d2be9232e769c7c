//! The report of a register run.

use serde::{Deserialize, Serialize};

use super::{Backend, Pages, RegisterContenderId};
use crate::machine::Machine;
use crate::report::Goal;

/// One contender in one cell: the medians of the runs that count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisterRow {
    /// The kind of registrar.
    pub backend: Backend,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Number of registrars, each of which registers the whole region.
    pub contexts: u32,
    /// The kind of pages; `None` on a simulated machine.
    pub pages: Option<Pages>,
    /// Whether the region was resident before the clock started.
    pub resident: bool,
    /// The contender.
    pub policy: RegisterContenderId,
    /// `sequential` or `parallel`: how most of the region was registered, in most of the runs.
    pub chosen: String,
    /// Seconds of populating, if the contender populates.
    pub populate_s: f64,
    /// Seconds of registering, planning and calibration included.
    pub register_s: f64,
    /// Seconds until all keys are given back.
    pub unregister_s: f64,
    /// Seconds of all three. It is a median itself, so it may differ from the sum of the parts.
    pub total_s: f64,
    /// Rate of the calibration chunks, one registrar after another, in GiB per second; `None`
    /// without calibration. Older records call it `trial_sequential_gib_per_s`.
    #[serde(alias = "trial_sequential_gib_per_s")]
    pub calibration_sequential_gib_per_s: Option<f64>,
    /// Rate of the calibration chunks, all registrars at once, in GiB per second; `None` without
    /// calibration. Older records call it `trial_parallel_gib_per_s`.
    #[serde(alias = "trial_parallel_gib_per_s")]
    pub calibration_parallel_gib_per_s: Option<f64>,
    /// Runs that count.
    pub runs: u32,
}

/// Rows that this machine cannot measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterSkipped {
    /// The kind of registrar.
    pub backend: Backend,
    /// Bytes of the region; all sizes when `None`.
    pub region_bytes: Option<u64>,
    /// The kind of pages; all when `None`.
    pub pages: Option<Pages>,
    /// Number of registrars; any when `None`.
    pub contexts: Option<u32>,
    /// The reason.
    pub reason: String,
}

/// The result of a run: the machine, the settings and every row. `Display` prints the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisterReport {
    /// The layer: "register".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether the run used fewer cells and rounds.
    pub quick: bool,
    /// The smallest number of rounds that count; figures are medians.
    pub reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<RegisterRow>,
    /// Milliseconds to plan a region of 1 TiB for 8 registrars; `None` if 1 TiB of addresses
    /// cannot be reserved.
    pub plan_ms: Option<f64>,
    /// Rows that are absent, and sizes that were reduced.
    pub skipped: Vec<RegisterSkipped>,
    /// The performance goals, and whether this run meets them.
    pub goals: Vec<Goal>,
}
