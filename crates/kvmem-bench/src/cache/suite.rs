//! *Suite*: the plan of a run, and how it is run.

use std::time::{Duration, Instant};

use super::measure::{Task, measure};
use super::{BenchError, ContenderId, Options, Report, Row, Scenario, goals};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stats::median;

const THREADS: [u32; 3] = [1, 2, 4];

/// How long the measurements are.
#[derive(Clone, Copy, Debug)]
struct Effort {
    reps: u32,
    time: Duration,
}

impl Effort {
    fn of(options: &Options) -> Self {
        let (reps, milliseconds) = if options.quick { (3, 40) } else { (7, 300) };
        let reps = options.reps.map_or(reps, |reps| reps.max(1));
        Self { reps, time: Duration::from_millis(milliseconds) }
    }

    /// About how many milliseconds a task takes, with what it prepares.
    fn units(&self) -> u64 {
        self.time.as_millis() as u64 + 80
    }
}

pub(super) fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    let start = Instant::now();
    let effort = Effort::of(options);
    let groups = groups(options, &effort);
    let tasks: usize = groups.iter().map(Vec::len).sum();
    progress.begin(tasks as u64 * u64::from(effort.reps) * effort.units());
    let mut rows = Vec::new();
    for group in &groups {
        rows.extend(turns(group, &effort, progress)?);
    }
    let machine = Machine::here();
    let goals = goals::of(&rows, machine.cores);
    Ok(Report {
        suite: "cache".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        quick: options.quick,
        reps: effort.reps,
        machine,
        seconds: start.elapsed().as_secs_f64(),
        rows,
        goals,
    })
}

/// Groups of tasks that differ in nothing but the contender and the number of threads: both are compared.
fn groups(options: &Options, effort: &Effort) -> Vec<Vec<Task>> {
    let scenarios = chosen(&Scenario::ALL, &options.scenarios);
    let contenders = chosen(&ContenderId::ALL, &options.contenders);
    let threads = if options.threads.is_empty() { &THREADS[..] } else { &options.threads };
    let of = |&scenario: &Scenario| {
        let each = threads.iter().flat_map(|&threads| contenders.iter().map(move |&id| (threads, id)));
        each.map(|(threads, contender)| Task { scenario, contender, threads, time: effort.time }).collect()
    };
    scenarios.iter().map(of).collect()
}

/// Those of `all` that are `named`; all of them when none is.
fn chosen<T: Copy + PartialEq>(all: &[T], named: &[T]) -> Vec<T> {
    all.iter().copied().filter(|one| named.is_empty() || named.contains(one)).collect()
}

/// Measures the tasks of a group, taking turns: a row for each.
fn turns(group: &[Task], effort: &Effort, progress: &mut dyn Progress<Row>) -> Result<Vec<Row>, BenchError> {
    let mut seen: Vec<Vec<f64>> = group.iter().map(|_| Vec::new()).collect();
    for rep in 0..effort.reps as usize {
        for i in 0..group.len() {
            let i = (i + rep) % group.len();
            let task = &group[i];
            let Task { scenario, contender, threads, .. } = *task;
            progress.step(&format!("{scenario} {contender} ×{threads}"));
            seen[i].push(measure(task).map_err(|error| BenchError {
                scenario,
                contender,
                threads,
                error,
            })?);
            progress.advance(effort.units());
        }
    }
    let mut rows = Vec::new();
    for (task, seen) in group.iter().zip(seen) {
        if let Some(mops) = median(seen) {
            let Task { scenario, contender, threads, .. } = *task;
            let row = Row { scenario, contender, threads, mops, ns: f64::from(threads) * 1e3 / mops };
            progress.row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}
