//! *Suite*: the plan of a run, and how it is run.

use std::time::{Duration, Instant};

use super::{BenchError, Line, Options, Report};
use crate::machine::Machine;
use crate::names::Named;
use crate::progress::Progress;
use crate::report::Goal;

/// What differs from suite to suite.
pub(crate) trait Suite {
    /// What is reported of a measurement.
    type Row: Line;
    /// What one repetition sees.
    type Seen;
    /// Why it sees nothing.
    type Error;
    /// Its name on the command line and in JSON.
    const NAME: &'static str;
    /// Numbers of threads, unless others are asked for.
    const THREADS: &'static [u32];
    /// How long a measurement is, in milliseconds: in a quick run, and in a full one.
    const MILLISECONDS: [u64; 2];

    /// About how many milliseconds a measurement of so many takes, with what it prepares.
    fn units(milliseconds: u64) -> u64;

    /// Whether a contender has a part in a scenario.
    fn takes_part(scenario: ScenarioOf<Self>, contender: ContenderOf<Self>) -> bool;

    /// Measures once.
    fn measure(task: &TaskOf<Self>) -> Result<Self::Seen, Self::Error>;

    /// The medians of what the repetitions saw.
    fn row(task: &TaskOf<Self>, seen: &[Self::Seen]) -> Option<Self::Row>;

    /// The figures to reach, on a machine with so many processors.
    fn goals(rows: &[Self::Row], cores: usize) -> Vec<Goal>;
}

type ScenarioOf<U> = <<U as Suite>::Row as Line>::Scenario;
type ContenderOf<U> = <<U as Suite>::Row as Line>::Contender;
type TaskOf<U> = Task<ScenarioOf<U>, ContenderOf<U>>;
type ErrorOf<U> = BenchError<ScenarioOf<U>, ContenderOf<U>, <U as Suite>::Error>;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task<S, C> {
    pub(crate) scenario: S,
    pub(crate) contender: C,
    pub(crate) threads: u32,
    pub(crate) time: Duration,
}

/// Runs what `options` ask for.
pub(crate) fn run<U: Suite>(
    options: &Options<ScenarioOf<U>, ContenderOf<U>>,
    progress: &mut dyn Progress<U::Row>,
) -> Result<Report<U::Row>, ErrorOf<U>> {
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
    Ok(Report {
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

/// A group for each scenario: its tasks differ in nothing but the contender and the number of
/// threads, for both are compared.
fn groups<U: Suite>(
    options: &Options<ScenarioOf<U>, ContenderOf<U>>,
    time: Duration,
) -> Vec<Vec<TaskOf<U>>> {
    let contenders = chosen(&options.contenders);
    let threads = if options.threads.is_empty() { U::THREADS } else { &options.threads };
    let of = |scenario| {
        let part =
            contenders.iter().copied().filter(|&contender| U::takes_part(scenario, contender));
        let part: Vec<_> = part.collect();
        let each = threads.iter().flat_map(|&threads| part.iter().map(move |&id| (threads, id)));
        each.map(|(threads, contender)| Task { scenario, contender, threads, time }).collect()
    };
    chosen(&options.scenarios).into_iter().map(of).collect()
}

/// Those of all that are `named`; all of them when none is.
fn chosen<T: Named>(named: &[T]) -> Vec<T> {
    T::ALL.iter().copied().filter(|one| named.is_empty() || named.contains(one)).collect()
}

/// Measures the tasks of a group, taking turns: a row for each.
fn turns<U: Suite>(
    group: &[TaskOf<U>],
    reps: u32,
    units: u64,
    progress: &mut dyn Progress<U::Row>,
) -> Result<Vec<U::Row>, ErrorOf<U>> {
    let mut seen: Vec<Vec<U::Seen>> = group.iter().map(|_| Vec::new()).collect();
    for rep in 0..reps as usize {
        for i in 0..group.len() {
            let i = (i + rep) % group.len();
            let Task { scenario, contender, threads, .. } = group[i];
            progress.step(&format!("{scenario} {contender} ×{threads}"));
            let failed = |error| BenchError { scenario, contender, threads, error };
            seen[i].push(U::measure(&group[i]).map_err(failed)?);
            progress.advance(units);
        }
    }
    let mut rows = Vec::new();
    for (task, seen) in group.iter().zip(&seen) {
        if let Some(row) = U::row(task, seen) {
            progress.row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}
