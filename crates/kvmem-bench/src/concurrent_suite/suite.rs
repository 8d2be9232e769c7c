//! The plan of a run, and its execution.

use std::time::{Duration, Instant};

use super::{SuiteBenchError, SuiteOptions, SuiteReport, SuiteRow};
use crate::machine::Machine;
use crate::names::Named;
use crate::progress::Progress;
use crate::report::Goal;

/// The part that differs between suites.
pub(crate) trait Suite {
    /// The reported row.
    type Row: SuiteRow;
    /// The result of one repetition.
    type Sample;
    /// The error of one repetition.
    type Error;
    /// The name on the command line and in JSON.
    const NAME: &'static str;
    /// The default numbers of threads.
    const THREADS: &'static [u32];
    /// The duration of a measurement in milliseconds: in a quick run, and in a full one.
    const MILLISECONDS: [u64; 2];

    /// Estimates the milliseconds of a measurement of this duration, including its preparation.
    fn units(milliseconds: u64) -> u64;

    /// Returns whether a contender takes part in a scenario.
    fn takes_part(scenario: ScenarioOf<Self>, contender: ContenderOf<Self>) -> bool;

    /// Measures once.
    fn measure(task: &TaskOf<Self>) -> Result<Self::Sample, Self::Error>;

    /// Returns the medians of the samples.
    fn row(task: &TaskOf<Self>, samples: &[Self::Sample]) -> Option<Self::Row>;

    /// Returns the goals, on a machine with `cores` processors.
    fn goals(rows: &[Self::Row], cores: usize) -> Vec<Goal>;
}

type ScenarioOf<U> = <<U as Suite>::Row as SuiteRow>::Scenario;
type ContenderOf<U> = <<U as Suite>::Row as SuiteRow>::Contender;
type TaskOf<U> = SuiteTask<ScenarioOf<U>, ContenderOf<U>>;
type ErrorOf<U> = SuiteBenchError<ScenarioOf<U>, ContenderOf<U>, <U as Suite>::Error>;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuiteTask<S, C> {
    pub(crate) scenario: S,
    pub(crate) contender: C,
    pub(crate) threads: u32,
    pub(crate) time: Duration,
}

/// Runs the benchmark that `options` select.
pub(crate) fn run<U: Suite>(
    options: &SuiteOptions<ScenarioOf<U>, ContenderOf<U>>,
    progress: &mut dyn Progress<U::Row>,
) -> Result<SuiteReport<U::Row>, ErrorOf<U>> {
    let start = Instant::now();
    let reps = options.reps.map_or(if options.quick { 3 } else { 7 }, |reps| reps.max(1));
    let milliseconds = U::MILLISECONDS[usize::from(!options.quick)];
    let groups = groups::<U>(options, Duration::from_millis(milliseconds));
    let tasks: usize = groups.iter().map(Vec::len).sum();
    progress.begin(tasks as u64 * u64::from(reps) * U::units(milliseconds));
    let mut rows = Vec::new();
    for group in &groups {
        rows.extend(turns::<U>(group, reps, U::units(milliseconds), progress)?);
    }
    let machine = Machine::here();
    let goals = U::goals(&rows, machine.cores);
    Ok(SuiteReport {
        suite: U::NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        quick: options.quick,
        reps,
        machine,
        seconds: start.elapsed().as_secs_f64(),
        rows,
        goals,
    })
}

/// Returns a group of tasks for each scenario. The tasks of a group differ only in the contender
/// and the number of threads, because both are compared.
fn groups<U: Suite>(
    options: &SuiteOptions<ScenarioOf<U>, ContenderOf<U>>,
    time: Duration,
) -> Vec<Vec<TaskOf<U>>> {
    let contenders = chosen(&options.contenders);
    let threads = if options.threads.is_empty() { U::THREADS } else { &options.threads };
    let of = |scenario| {
        let part =
            contenders.iter().copied().filter(|&contender| U::takes_part(scenario, contender));
        let part: Vec<_> = part.collect();
        let each = threads.iter().flat_map(|&threads| part.iter().map(move |&id| (threads, id)));
        each.map(|(threads, contender)| SuiteTask { scenario, contender, threads, time }).collect()
    };
    chosen(&options.scenarios).into_iter().map(of).collect()
}

/// Returns the values in `named`, in their order in `ALL`; all values if `named` is empty.
fn chosen<T: Named>(named: &[T]) -> Vec<T> {
    T::ALL.iter().copied().filter(|one| named.is_empty() || named.contains(one)).collect()
}

/// Measures the tasks of a group in turns; returns a row for each.
fn turns<U: Suite>(
    group: &[TaskOf<U>],
    reps: u32,
    units: u64,
    progress: &mut dyn Progress<U::Row>,
) -> Result<Vec<U::Row>, ErrorOf<U>> {
    let mut samples: Vec<Vec<U::Sample>> = group.iter().map(|_| Vec::new()).collect();
    for rep in 0..reps as usize {
        for i in 0..group.len() {
            let i = (i + rep) % group.len();
            let SuiteTask { scenario, contender, threads, .. } = group[i];
            progress.step(&format!("{scenario} {contender} ×{threads}"));
            let failed = |error| SuiteBenchError { scenario, contender, threads, error };
            samples[i].push(U::measure(&group[i]).map_err(failed)?);
            progress.advance(units);
        }
    }
    let mut rows = Vec::new();
    for (task, samples) in group.iter().zip(&samples) {
        if let Some(row) = U::row(task, samples) {
            progress.row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}
