//! Runs the plan.

use std::time::Instant;

use super::measure::{SlabSample, Task, in_child, measure};
use super::plan::{SlabEffort, SlabGroup, groups};
use super::report::{SlabReport, SlabRow};
use super::{SlabBenchError, SlabMeasureError, SlabOptions, goals, loops};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stats::median;

pub(super) fn run(
    options: &SlabOptions,
    progress: &mut dyn Progress<SlabRow>,
) -> Result<SlabReport, SlabBenchError> {
    let start = Instant::now();
    let effort = SlabEffort::of(options);
    let (groups, skipped) = groups(options, &effort);
    let tasks: usize = groups.iter().map(|group| group.tasks.len()).sum();
    progress.begin(tasks as u64 * u64::from(effort.reps) * effort.units());
    let mut rows = Vec::new();
    for group in &groups {
        rows.extend(turns(group, options, &effort, progress)?);
    }
    let goals = goals::of(&rows);
    Ok(SlabReport {
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

/// Measures the tasks of `group` in turns; returns a row for each.
fn turns(
    group: &SlabGroup,
    options: &SlabOptions,
    effort: &SlabEffort,
    progress: &mut dyn Progress<SlabRow>,
) -> Result<Vec<SlabRow>, SlabBenchError> {
    let mut samples: Vec<Vec<SlabSample>> = group.tasks.iter().map(|_| Vec::new()).collect();
    for rep in 0..effort.reps as usize {
        for i in 0..group.tasks.len() {
            let i = (i + rep) % group.tasks.len();
            let task = &group.tasks[i];
            progress.step(&name(task));
            let one = once(task, options).map_err(|error| SlabBenchError { task: *task, error })?;
            samples[i].push(one);
            progress.advance(effort.units());
        }
    }
    let mut rows = Vec::new();
    for (task, samples) in group.tasks.iter().zip(&samples) {
        if let Some(row) = row(task, samples) {
            progress.row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn once(task: &Task, options: &SlabOptions) -> Result<SlabSample, SlabMeasureError> {
    match options.child {
        Some(child) => in_child(task, child),
        // All heaps share the memory of this process.
        None => measure(task).map(|sample| SlabSample { rss_bytes: None, ..sample }),
    }
}

fn name(task: &Task) -> String {
    format!("{} ≤ {} B {} ×{}", task.pattern, task.max_block_bytes, task.contender, task.threads)
}

/// Returns the medians of the samples.
fn row(task: &Task, samples: &[SlabSample]) -> Option<SlabRow> {
    let rss = samples.iter().filter_map(|one| one.rss_bytes).map(|bytes| bytes as f64);
    Some(SlabRow {
        pattern: task.pattern,
        max_block_bytes: task.max_block_bytes,
        threads: task.threads,
        contender: task.contender,
        ns_per_pair: median(samples.iter().map(|one| one.ns_per_pair).collect())?,
        rss_bytes: median(rss.collect()).map(|bytes| bytes as u64),
    })
}
