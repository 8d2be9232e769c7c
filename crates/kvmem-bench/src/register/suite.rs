//! *Suite*: its rows, and how they are measured.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::cell::size;
use super::measure::RegisterSample;
use super::memory::RegisterFixture;
use super::plan::{self, RegisterTask};
use super::planning::plan_ms;
use super::{
    Backend, Pages, RegisterContenderId, RegisterMeasureError, RegisterOptions, goals, sections,
};
use crate::progress::Progress;
use crate::stats::median;
use crate::suite::plan::Stop;
use crate::suite::{GoalList, Measured, Plan, Report, Section, Suite};

/// The benchmark of the register layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisterSuite;

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

impl Display for RegisterSkipped {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes =
            self.region_bytes.map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
        let pages = self.pages.map_or_else(String::new, |pages| format!(" {pages}"));
        let contexts =
            self.contexts.map_or_else(String::new, |contexts| format!(", {contexts} context(s)"));
        write!(f, "{}{bytes}{pages}{contexts}: {}", self.backend, self.reason)
    }
}

/// The settings of a run, and the figure that belongs to no row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisterDetails {
    /// The smallest number of rounds that count; figures are medians.
    pub reps: u32,
    /// Milliseconds to plan a region of 1 TiB for 8 registrars; `None` if 1 TiB of addresses
    /// cannot be reserved.
    pub plan_ms: Option<f64>,
}

impl Display for RegisterDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} or more round(s)", self.reps)
    }
}

impl Suite for RegisterSuite {
    const NAME: &'static str = "register";
    type Row = RegisterRow;
    type Skipped = RegisterSkipped;
    type Details = RegisterDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.details.plan_ms, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        sections::of(&report.rows, report.details.plan_ms)
    }
}

impl Measured for RegisterSuite {
    type Options = RegisterOptions;
    type Task = RegisterTask;
    type Sample = RegisterSample;
    type Fixture = RegisterFixture;
    type Error = RegisterMeasureError;

    fn plan(options: &RegisterOptions) -> Plan<Self> {
        plan::plan(options)
    }

    fn name(task: &RegisterTask) -> String {
        format!("{}: {}", task.cell, task.contender)
    }

    fn prepare(
        fixture: &mut RegisterFixture,
        first: &RegisterTask,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<(), Stop<RegisterSkipped, RegisterMeasureError>> {
        fixture.prepare(first, progress)
    }

    fn measure(
        fixture: &mut RegisterFixture,
        task: &RegisterTask,
        _: u32,
    ) -> Result<RegisterSample, Stop<RegisterSkipped, RegisterMeasureError>> {
        fixture.measure(task)
    }

    fn row(
        _: &mut RegisterDetails,
        task: &RegisterTask,
        samples: &[RegisterSample],
    ) -> Option<RegisterRow> {
        let of = |figure: fn(&RegisterSample) -> f64| median(samples.iter().map(figure).collect());
        let calibration = |figure: fn((f64, f64)) -> f64| {
            median(samples.iter().filter_map(|one| one.calibration.map(figure)).collect())
        };
        let mut votes: HashMap<&'static str, usize> = HashMap::new();
        for one in samples {
            *votes.entry(one.chosen).or_default() += 1;
        }
        let chosen = votes.into_iter().max_by_key(|&(chosen, votes)| (votes, chosen))?.0;
        Some(RegisterRow {
            backend: task.cell.backend,
            region_bytes: task.cell.region_bytes,
            contexts: task.cell.contexts,
            pages: task.cell.pages,
            resident: task.cell.resident,
            policy: task.contender,
            chosen: chosen.to_owned(),
            populate_s: of(|one| one.populate_s)?,
            register_s: of(|one| one.register_s)?,
            unregister_s: of(|one| one.unregister_s)?,
            total_s: of(RegisterSample::total_s)?,
            calibration_sequential_gib_per_s: calibration(|rates| rates.0),
            calibration_parallel_gib_per_s: calibration(|rates| rates.1),
            runs: u32::try_from(samples.len()).unwrap_or(u32::MAX),
        })
    }

    fn finish(details: &mut RegisterDetails) {
        details.plan_ms = plan_ms();
    }
}
