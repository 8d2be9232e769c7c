//! The common part of suites in which several threads share one object: scenarios × contenders ×
//! numbers of threads → rows.
//!
//! 1. *Threads* are bound to processors and all run for the whole of a fixed time. The rate is the
//!    sum of the threads' rates.
//! 2. *Noise.* All measurements of a scenario take turns, which makes contenders and numbers of
//!    threads comparable.

pub(crate) mod thread_loop;

use std::fmt::Display;
use std::time::Duration;

use kvmem_report::Scale;

use crate::suite::columns::side_by_side;
use crate::suite::plan::Group;
use crate::suite::{
    Measured, Named, NothingSkipped, Plan, Repetitions, Section, Stored, Suite, bars, chosen,
};

/// The options of a run of a suite with scenarios `S` and contenders `C`.
#[derive(Clone, Debug)]
pub struct ConcurrentOptions<S, C> {
    /// Whether to use shorter and fewer repetitions: seconds instead of minutes.
    pub quick: bool,
    /// Repetitions of each measurement; the median is reported. Unless set, 7, or 3 when quick.
    pub reps: Option<u32>,
    /// Only these scenarios; all when empty.
    pub scenarios: Vec<S>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<C>,
    /// Only these numbers of threads; the suite's usual ones when empty.
    pub threads: Vec<u32>,
}

impl<S, C> Default for ConcurrentOptions<S, C> {
    /// Returns the options of a full run of everything.
    fn default() -> Self {
        let (scenarios, contenders, threads) = (Vec::new(), Vec::new(), Vec::new());
        ConcurrentOptions { quick: false, reps: None, scenarios, contenders, threads }
    }
}

/// A row of a report: one contender in one scenario on one number of threads, and its presentation.
pub trait ConcurrentRow: Stored + 'static {
    /// The suite's scenarios.
    type Scenario: Named + Display;
    /// The suite's contenders.
    type Contender: Named + Display;
    /// The meaning of a contender's two cells, in the order of the cells.
    const CELLS: &'static str;
    /// The heading of the second cell; the contender's name is the heading of the first.
    const SECOND: &'static str;
    /// The plots: title, unit, and figure of each.
    const PLOTS: &'static [FigurePlot<Self>];

    /// Returns the scenario.
    fn scenario(&self) -> Self::Scenario;
    /// Returns the contender.
    fn contender(&self) -> Self::Contender;
    /// Returns the number of threads.
    fn threads(&self) -> u32;
    /// Returns its cells in a table.
    fn cells(&self) -> [String; 2];
}

/// A plot of one figure of all rows: title, unit, and the figure.
pub type FigurePlot<R> = (&'static str, &'static str, fn(&R) -> f64);

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConcurrentTask<S, C> {
    pub(crate) scenario: S,
    pub(crate) contender: C,
    pub(crate) threads: u32,
    pub(crate) time: Duration,
}

impl<S: Display, C: Display> ConcurrentTask<S, C> {
    /// Returns its name in progress reports and errors.
    pub(crate) fn name(&self) -> String {
        format!("{} {} ×{}", self.scenario, self.contender, self.threads)
    }
}

/// The size of a suite.
pub(crate) struct ConcurrentEffort {
    /// The default numbers of threads.
    pub(crate) threads: &'static [u32],
    /// The duration of a measurement in milliseconds: in a quick run, and in a full one.
    pub(crate) milliseconds: [u64; 2],
    /// Estimates the milliseconds of a measurement of this duration, including its preparation.
    pub(crate) units: fn(u64) -> u64,
}

/// Returns a plan with a group for each scenario. The tasks of a group differ only in the contender
/// and the number of threads, because both are compared. `takes_part` tells whether a contender
/// takes part in a scenario.
pub(crate) fn plan<U, S: Named, C: Named>(
    options: &ConcurrentOptions<S, C>,
    effort: &ConcurrentEffort,
    takes_part: impl Fn(S, C) -> bool,
) -> Plan<U>
where
    U: Suite<Details = Repetitions, Skipped = NothingSkipped>
        + Measured<Task = ConcurrentTask<S, C>, Fixture = ()>,
{
    let quick = options.quick;
    let reps = options.reps.map_or(if quick { 3 } else { 7 }, |reps| reps.max(1));
    let milliseconds = effort.milliseconds[usize::from(!quick)];
    let time = Duration::from_millis(milliseconds);
    let contenders = chosen(&options.contenders);
    let threads = if options.threads.is_empty() { effort.threads } else { &options.threads };
    let group = |scenario| {
        let of = |threads| {
            let able = contenders.iter().filter(|&&contender| takes_part(scenario, contender));
            let task = |&contender| ConcurrentTask { scenario, contender, threads, time };
            able.map(task).collect::<Vec<_>>()
        };
        let tasks = threads.iter().flat_map(|&threads| of(threads));
        Group::rotated(tasks, reps, (effort.units)(milliseconds))
    };
    let groups = chosen(&options.scenarios).into_iter().map(group).collect();
    Plan { quick, groups, skipped: Vec::new(), fixture: (), details: Repetitions { reps } }
}

/// Returns a section for each scenario: a line for each number of threads, the contenders side by
/// side.
pub(crate) fn sections<R: ConcurrentRow>(rows: &[R]) -> Vec<Section> {
    let contenders = || R::Contender::ALL.iter().copied();
    let of = |&scenario: &R::Scenario| {
        let rows: Vec<&R> = rows.iter().filter(|row| row.scenario() == scenario).collect();
        let plots = R::PLOTS.iter().map(|&(title, unit, figure)| {
            let names = contenders().map(|id| id.to_string());
            let group = |row: &R| format!("{} thread(s)", row.threads());
            let series = |row: &R| row.contender().to_string();
            let figure = |row: &R| Some(figure(row));
            bars((title, unit, Scale::Log), names, &rows, group, series, figure)
        });
        let table = side_by_side(
            &rows,
            contenders().map(|id| (id, [id.to_string(), R::SECOND.to_owned()])),
            |row| format!("{scenario}, {} thread(s)", row.threads()),
            R::contender,
            R::cells,
        );
        plots.fold(Section::of_scenario(scenario, R::CELLS), Section::bars).table(table)
    };
    R::Scenario::ALL.iter().map(of).collect()
}
