//! *Suite*: its size, its rows and their presentation.

use serde::{Deserialize, Serialize};

use super::measure::{CacheTask, measure};
use super::{CacheContenderId, CacheMeasureError, CacheOptions, CacheScenario, goals};
use crate::concurrent_suite::{self, ConcurrentEffort, ConcurrentRow, FigurePlot};
use crate::stats::median;
use crate::suite::plan::{SMALLEST, Stop};
use crate::suite::{GoalList, Measured, NothingSkipped, Plan, Repetitions, Report, Section, Suite};

/// The benchmark of pools under threads.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheSuite;

/// One contender in one scenario. Figures are medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheRow {
    /// The scenario.
    pub scenario: CacheScenario,
    /// The contender.
    pub contender: CacheContenderId,
    /// Number of threads that share it.
    pub threads: u32,
    /// Million calls per second of all threads together.
    pub mops: f64,
    /// Nanoseconds of a call in its thread.
    pub ns: f64,
}

impl ConcurrentRow for CacheRow {
    type Scenario = CacheScenario;
    type Contender = CacheContenderId;
    const CELLS: &'static str = "nanoseconds of a call, and million calls a second of all threads";
    const SECOND: &'static str = "M/s";
    const PLOTS: &'static [FigurePlot<Self>] = &[("A call, less is better", "ns", |row| row.ns)];

    fn scenario(&self) -> CacheScenario {
        self.scenario
    }

    fn contender(&self) -> CacheContenderId {
        self.contender
    }

    fn threads(&self) -> u32 {
        self.threads
    }

    fn cells(&self) -> [String; 2] {
        [format!("{:.1}", self.ns), format!("{:.2}", self.mops)]
    }
}

impl Suite for CacheSuite {
    const NAME: &'static str = "cache";
    type Row = CacheRow;
    type Skipped = NothingSkipped;
    type Details = Repetitions;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.machine.cores, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        concurrent_suite::sections(&report.rows)
    }
}

impl Measured for CacheSuite {
    type Options = CacheOptions;
    type Task = CacheTask;
    /// Million calls per second of all threads.
    type Sample = f64;
    type Fixture = ();
    type Error = CacheMeasureError;

    fn plan(options: &CacheOptions) -> Plan<Self> {
        let units = |milliseconds| milliseconds + 80;
        let milliseconds = [if SMALLEST { 4 } else { 40 }, 300];
        let effort = ConcurrentEffort { threads: &[1, 2, 4], milliseconds, units };
        concurrent_suite::plan(options, &effort, |scenario, contender| {
            contender.takes_part(scenario)
        })
    }

    fn name(task: &CacheTask) -> String {
        task.name()
    }

    fn measure(
        _: &mut (),
        task: &CacheTask,
        _: u32,
    ) -> Result<f64, Stop<NothingSkipped, CacheMeasureError>> {
        Ok(measure(task)?)
    }

    fn row(_: &mut Repetitions, task: &CacheTask, samples: &[f64]) -> Option<CacheRow> {
        let CacheTask { scenario, contender, threads, .. } = *task;
        let mops = median(samples.to_vec())?;
        Some(CacheRow { scenario, contender, threads, mops, ns: f64::from(threads) * 1e3 / mops })
    }
}
