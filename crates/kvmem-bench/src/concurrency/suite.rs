//! *Suite*: its size, its rows and their presentation.

use serde::{Deserialize, Serialize};

use super::measure::{ConcurrencySample, ConcurrencyTask, measure};
use super::{
    ConcurrencyContenderId, ConcurrencyMeasureError, ConcurrencyOptions, ConcurrencyScenario, goals,
};
use crate::concurrent_suite::{self, ConcurrentEffort, ConcurrentRow, FigurePlot};
use crate::stats::median;
use crate::suite::plan::{SMALLEST, Stop};
use crate::suite::{GoalList, Measured, NothingSkipped, Plan, Repetitions, Report, Section, Suite};

/// The benchmark of one allocator of offsets that several threads share.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencySuite;

/// One contender in one scenario. Figures are medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyRow {
    /// The scenario.
    pub scenario: ConcurrencyScenario,
    /// The contender.
    pub contender: ConcurrencyContenderId,
    /// Threads that share the allocator.
    pub threads: u32,
    /// Million calls per second, all threads together: allocations, frees, and failing requests.
    pub mops: f64,
    /// Nanoseconds of wall time that half of the calls do not exceed.
    pub p50_ns: f64,
    /// Nanoseconds that 99 % of the calls do not exceed.
    pub p99_ns: f64,
}

impl ConcurrentRow for ConcurrencyRow {
    type Scenario = ConcurrencyScenario;
    type Contender = ConcurrencyContenderId;
    const CELLS: &'static str =
        "million calls a second of all threads, and p50 / p99 of a call in ns";
    const SECOND: &'static str = "ns";
    const PLOTS: &'static [FigurePlot<Self>] = &[
        ("All threads together, more is better", "million calls a second", |row| row.mops),
        ("99 % of the calls take no longer, less is better", "ns", |row| row.p99_ns),
    ];

    fn scenario(&self) -> ConcurrencyScenario {
        self.scenario
    }

    fn contender(&self) -> ConcurrencyContenderId {
        self.contender
    }

    fn threads(&self) -> u32 {
        self.threads
    }

    fn cells(&self) -> [String; 2] {
        [format!("{:.2}", self.mops), format!("{:.0} / {:.0}", self.p50_ns, self.p99_ns)]
    }
}

impl Suite for ConcurrencySuite {
    const NAME: &'static str = "concurrency";
    type Row = ConcurrencyRow;
    type Skipped = NothingSkipped;
    type Details = Repetitions;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.machine.cores, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        concurrent_suite::sections(&report.rows)
    }
}

impl Measured for ConcurrencySuite {
    type Options = ConcurrencyOptions;
    type Task = ConcurrencyTask;
    type Sample = ConcurrencySample;
    type Fixture = ();
    type Error = ConcurrencyMeasureError;

    fn plan(options: &ConcurrencyOptions) -> Plan<Self> {
        let units = |milliseconds| milliseconds * 3 / 2 + 15;
        let milliseconds = [if SMALLEST { 2 } else { 12 }, 200];
        let effort = ConcurrentEffort { threads: &[1, 2, 4, 16], milliseconds, units };
        let takes_part = |scenario, contender| {
            contender != ConcurrencyContenderId::KvmemShards
                || scenario == ConcurrencyScenario::Fragmented
        };
        concurrent_suite::plan(options, &effort, takes_part)
    }

    fn name(task: &ConcurrencyTask) -> String {
        task.name()
    }

    fn measure(
        _: &mut (),
        task: &ConcurrencyTask,
        _: u32,
    ) -> Result<ConcurrencySample, Stop<NothingSkipped, ConcurrencyMeasureError>> {
        Ok(measure(task)?)
    }

    fn row(
        _: &mut Repetitions,
        task: &ConcurrencyTask,
        samples: &[ConcurrencySample],
    ) -> Option<ConcurrencyRow> {
        let of =
            |figure: fn(&ConcurrencySample) -> f64| median(samples.iter().map(figure).collect());
        Some(ConcurrencyRow {
            scenario: task.scenario,
            contender: task.contender,
            threads: task.threads,
            mops: of(|one| one.mops)?,
            p50_ns: of(|one| one.p50_ns)?,
            p99_ns: of(|one| one.p99_ns)?,
        })
    }
}
