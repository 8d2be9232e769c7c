//! *Suite*: how its rows are measured, and their presentation.

use std::fmt::{self, Display, Formatter};

use kvmem_testkit::workload::Bimodal;
use serde::{Deserialize, Serialize};

use super::measure::{Measurement, OffsetSample};
use super::plan::{self, Job, OffsetEffort, OffsetTask};
use super::{OffsetOptions, OffsetRow, WorkloadId, goals, plots, summary, tables};
use crate::loops::LoopError;
use crate::neighbour::Streamed;
use crate::progress::Progress;
use crate::suite::plan::Stop;
use crate::suite::{
    GoalList, Measured, NothingSkipped, Plan, Report, Section, SeededRepetitions, Suite,
};

/// The benchmark of the offset layer.
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetSuite;

/// The settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OffsetDetails {
    /// Seed and repetitions.
    #[serde(flatten)]
    pub run: SeededRepetitions,
    /// The process that streamed through memory meanwhile, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<Streamed>,
}

impl Display for OffsetDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.run)?;
        self.neighbour.iter().try_for_each(|neighbour| write!(f, ", {neighbour}"))
    }
}

/// What the measurements share.
pub(crate) struct OffsetFixture {
    pub(super) seed: u64,
    pub(super) effort: OffsetEffort,
    /// The requests of the current job, if all contenders get them from a list.
    pub(super) events: Option<Bimodal>,
}

impl Suite for OffsetSuite {
    const NAME: &'static str = "offset";
    type Row = OffsetRow;
    type Skipped = NothingSkipped;
    type Details = OffsetDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.quick, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        let of = |workload| {
            let rows: Vec<&OffsetRow> =
                report.rows.iter().filter(|row| row.workload == workload).collect();
            let section = plots::plotted(Section::new(tables::title(workload)), workload, &rows);
            tables::of(workload, &rows).into_iter().fold(section, Section::table)
        };
        WorkloadId::ALL.into_iter().map(of).collect()
    }
}

impl Measured for OffsetSuite {
    type Options = OffsetOptions;
    type Task = OffsetTask;
    type Sample = OffsetSample;
    type Fixture = OffsetFixture;
    type Error = LoopError;

    fn plan(options: &OffsetOptions) -> Plan<Self> {
        plan::plan(options)
    }

    fn name(task: &OffsetTask) -> String {
        let OffsetTask { job, contender } = task;
        match job.form() {
            Some(form) => format!("{} {form} {contender}", job.workload()),
            None => format!("{} {contender}", job.workload()),
        }
    }

    fn prepare(
        fixture: &mut OffsetFixture,
        first: &OffsetTask,
        _: &mut dyn Progress<OffsetRow>,
    ) -> Result<(), Stop<NothingSkipped, LoopError>> {
        fixture.events = match first.job {
            Job::Rl { producers, lifetimes } => {
                let batches = fixture.effort.rl_batches / producers;
                Some(Bimodal::new(fixture.seed, producers, lifetimes, batches))
            }
            _ => None,
        };
        Ok(())
    }

    fn measure(
        fixture: &mut OffsetFixture,
        task: &OffsetTask,
        rep: u32,
    ) -> Result<OffsetSample, Stop<NothingSkipped, LoopError>> {
        Ok(task.contender.visit(Measurement { job: task.job, fixture, rep })?)
    }

    fn row(
        _: &mut OffsetDetails,
        task: &OffsetTask,
        samples: &[OffsetSample],
    ) -> Option<OffsetRow> {
        Some(summary::row(task, samples))
    }
}
