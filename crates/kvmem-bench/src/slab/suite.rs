//! *Suite*: runs the plan.

use std::time::Instant;

use super::measure::{Seen, Task, in_child, measure};
use super::plan::{Effort, Group, groups};
use super::report::{Report, Row};
use super::{BenchError, MeasureError, Options, goals, loops};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stats::median;

pub(super) fn run(
    options: &Options,
    progress: &mut dyn Progress<Row>,
) -> Result<Report, BenchError> {
    let start = Instant::now();
    let effort = Effort::of(options);
    let (groups, skipped) = groups(options, &effort);
    let tasks: usize = groups.iter().map(|group| group.tasks.len()).sum();
    progress.begin(tasks as u64 * u64::from(effort.reps) * effort.units());
    let mut rows = Vec::new();
    for group in &groups {
        rows.extend(turns(group, options, &effort, progress)?);
    }
    let goals = goals::of(&rows);
    Ok(Report {
        suite: "slab".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: loops::SEED,
        quick: options.quick,
        reps: effort.reps,
        machine: Machine::here(),
        seconds: start.elapsed().as_secs_f64(),
        rows,
        skipped,
        goals,
    })
}

/// Measures the tasks of `group`, taking turns: a row for each.
fn turns(
    group: &Group,
    options: &Options,
    effort: &Effort,
    progress: &mut dyn Progress<Row>,
) -> Result<Vec<Row>, BenchError> {
    let mut seen: Vec<Vec<Seen>> = group.tasks.iter().map(|_| Vec::new()).collect();
    for rep in 0..effort.reps as usize {
        for i in 0..group.tasks.len() {
            let i = (i + rep) % group.tasks.len();
            let task = &group.tasks[i];
            progress.step(&name(task));
            let one = once(task, options).map_err(|error| BenchError { task: *task, error })?;
            seen[i].push(one);
            progress.advance(effort.units());
        }
    }
    let mut rows = Vec::new();
    for (task, seen) in group.tasks.iter().zip(&seen) {
        if let Some(row) = row(task, seen) {
            progress.row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn once(task: &Task, options: &Options) -> Result<Seen, MeasureError> {
    match options.child {
        Some(child) => in_child(task, child),
        // The memory of this process is everybody's.
        None => measure(task).map(|seen| Seen { rss_bytes: None, ..seen }),
    }
}

fn name(task: &Task) -> String {
    format!("{} ≤ {} B {} ×{}", task.pattern, task.max_block_bytes, task.contender, task.threads)
}

/// The medians of what the repetitions saw.
fn row(task: &Task, seen: &[Seen]) -> Option<Row> {
    let rss = seen.iter().filter_map(|one| one.rss_bytes).map(|bytes| bytes as f64);
    Some(Row {
        pattern: task.pattern,
        max_block_bytes: task.max_block_bytes,
        threads: task.threads,
        contender: task.contender,
        ns_per_pair: median(seen.iter().map(|one| one.ns_per_pair).collect())?,
        rss_bytes: median(rss.collect()).map(|bytes| bytes as u64),
    })
}
