//! Runs the plan.

use std::time::Instant;

use super::measure::{ArenaSample, measure};
use super::plan::{ArenaEffort, ArenaGroup, ArenaTask, groups};
use super::report::{ArenaReport, ArenaRow, ArenaSkipped};
use super::{
    ArenaBenchError, ArenaContenderId, ArenaMeasureError, ArenaOptions, Op, Pages, goals, mapping,
};
use crate::hugepages::Hugepages;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stats::median;

pub(super) fn run(
    options: &ArenaOptions,
    progress: &mut dyn Progress<ArenaRow>,
) -> Result<ArenaReport, ArenaBenchError> {
    let start = Instant::now();
    let mut effort = ArenaEffort::of(options);
    let (groups, skipped) = groups(options, &mut effort);
    progress.begin(groups.iter().map(|group| group.units(&effort)).sum());
    let mut results = ArenaResults {
        borrow_hugepages: options.borrow_hugepages,
        rows: Vec::new(),
        skipped,
        mapped_resident_bytes: None,
    };
    for group in &groups {
        results.add(group, &effort, progress)?;
    }
    let goals = goals::of(&results.rows, results.mapped_resident_bytes);
    Ok(ArenaReport {
        suite: "arena".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        quick: options.quick,
        bump_reps: effort.bump_reps,
        page_reps: effort.page_reps,
        machine: Machine::here(),
        seconds: start.elapsed().as_secs_f64(),
        rows: results.rows,
        mapped_resident_bytes: results.mapped_resident_bytes,
        skipped: results.skipped,
        goals,
    })
}

/// The results of the groups so far.
struct ArenaResults {
    borrow_hugepages: bool,
    rows: Vec<ArenaRow>,
    skipped: Vec<ArenaSkipped>,
    mapped_resident_bytes: Option<u64>,
}

impl ArenaResults {
    /// Measures the tasks of `group` in turns and adds a row for each.
    fn add(
        &mut self,
        group: &ArenaGroup,
        effort: &ArenaEffort,
        progress: &mut dyn Progress<ArenaRow>,
    ) -> Result<(), ArenaBenchError> {
        let Some(first) = group.tasks.first() else { return Ok(()) };
        let skip = |reason| ArenaSkipped { op: first.op, pages: group.pages(), reason };
        let borrowed = match group.pages() {
            Some(Pages::Huge) => {
                Hugepages::provide(group.resident_bytes(), self.borrow_hugepages).map(Some)
            }
            _ => Ok(None),
        };
        let _hugepages = match borrowed {
            Ok(hugepages) => hugepages,
            Err(reason) => {
                progress.advance(group.units(effort));
                self.skipped.push(skip(reason));
                return Ok(());
            }
        };
        if let Some(pages) = group.pages().filter(|_| group.resident_bytes() > 0) {
            // Fetches the memory from the host here, before the first task.
            let warm = mapping::map_populate(pages, group.resident_bytes() as usize);
            warm.map_err(|error| failed(first, error.into()))?;
        }
        let mut done = 0;
        let mut samples: Vec<Vec<ArenaSample>> = group.tasks.iter().map(|_| Vec::new()).collect();
        for rep in 0..group.reps as usize {
            for i in 0..group.tasks.len() {
                let i = (i + rep) % group.tasks.len();
                let task = &group.tasks[i];
                progress.step(&name(task));
                // Creating hugepages for a memory file after a task that used base pages would also
                // pay for fetching them from the host; an unmeasured run pays instead.
                let again = task.pages == Some(Pages::Shared) && task.op == Op::Populate;
                let warm = if again { measure(task, effort).map(drop) } else { Ok(()) };
                match warm.and_then(|()| measure(task, effort)) {
                    Ok(one) => samples[i].push(one),
                    // A limit forbids the mapping; this says nothing about a contender's speed.
                    Err(error)
                        if task.op == Op::Map || matches!(error, ArenaMeasureError::System(_)) =>
                    {
                        progress.advance(group.units(effort) - done);
                        self.skipped.push(skip(format!("{}: {error}", label(task))));
                        return Ok(());
                    }
                    Err(error) => return Err(failed(task, error)),
                }
                progress.advance(task.units(effort));
                done += task.units(effort);
            }
        }
        for (task, samples) in group.tasks.iter().zip(&samples) {
            if task.op == Op::Map {
                self.mapped_resident_bytes =
                    samples.iter().filter_map(|one| one.resident_bytes).max();
            }
            let row = row(task, samples);
            progress.row(&row);
            self.rows.push(row);
        }
        Ok(())
    }
}

fn failed(task: &ArenaTask, error: ArenaMeasureError) -> ArenaBenchError {
    ArenaBenchError { op: task.op, contender: task.contender, error }
}

fn name(task: &ArenaTask) -> String {
    let pages = task.pages.map_or_else(String::new, |pages| format!("{pages} "));
    format!("{} {pages}{}", task.op, label(task))
}

/// Names what distinguishes tasks with the same operation and pages: size, contender and threads.
fn label(task: &ArenaTask) -> String {
    let size = if task.pages.is_none() { format!("{} B ", task.size_bytes) } else { String::new() };
    let threads = task.threads.map_or_else(String::new, |threads| format!(" ×{threads}"));
    format!("{size}{}{threads}", task.contender)
}

/// Returns the medians of the samples.
fn row(task: &ArenaTask, samples: &[ArenaSample]) -> ArenaRow {
    let ns = median(samples.iter().map(|one| one.ns).collect());
    let rate = matches!(task.op, Op::Populate | Op::Discard);
    let gib = task.size_bytes as f64 / (1u64 << 30) as f64;
    let threads = if task.contender == ArenaContenderId::KvmemAuto {
        median(samples.iter().map(|one| f64::from(one.threads)).collect())
            .map_or(1, |threads| threads as u32)
    } else {
        task.threads.unwrap_or(1)
    };
    ArenaRow {
        op: task.op,
        pages: task.pages,
        threads,
        size_bytes: task.size_bytes,
        contender: task.contender,
        ns_per_op: if rate { None } else { ns },
        gib_per_s: if rate { ns.map(|ns| gib * 1e9 / ns) } else { None },
    }
}
