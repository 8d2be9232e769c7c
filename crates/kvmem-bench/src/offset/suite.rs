//! Runs the plan.

use std::time::Instant;

use kvmem_testkit::workload::{Bimodal, Lifetimes};

use super::measure::{Loop, Measure};
use super::measure::{
    MetadataLoop, PairedLoop, RandomLoop, RlLoop, ScatterLoop, ShiftLoop, UniformLoop,
};
use super::measure::{metadata_row, mixed_row, rl_row, set_published, shift_row, uniform_row};
use super::plan::{Job, OffsetEffort, PlannedJob, planned_jobs};
use super::{OffsetBenchError, OffsetOptions, WorkloadId, goals};
use crate::contender::ContenderId;
use crate::loops::{memory, paired, random};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::published;
use crate::report::{OffsetReport, OffsetRow};

pub(super) fn run(
    options: &OffsetOptions,
    progress: &mut dyn Progress,
) -> Result<OffsetReport, OffsetBenchError> {
    let start = Instant::now();
    let effort = OffsetEffort::of(options);
    let planned = planned_jobs(options);
    let units = |planned: &PlannedJob| -> u64 {
        let of = |&id: &ContenderId| {
            u64::from(planned.job.reps(id, &effort)) * planned.job.units(id, &effort)
        };
        planned.contenders.iter().map(of).sum()
    };
    progress.begin(planned.iter().map(units).sum());
    let mut rows = Vec::new();
    for planned in &planned {
        let mut run = JobRun { options, effort, planned, progress };
        rows.extend(run.rows()?);
    }
    let goals = goals::of(&rows, options.quick);
    Ok(OffsetReport {
        suite: "offset".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: options.seed,
        quick: options.quick,
        reps: effort.reps,
        machine: Machine::here(),
        seconds: start.elapsed().as_secs_f64(),
        rows,
        goals,
    })
}

/// One job of the plan in progress.
struct JobRun<'a> {
    options: &'a OffsetOptions,
    effort: OffsetEffort,
    planned: &'a PlannedJob,
    progress: &'a mut dyn Progress,
}

impl JobRun<'_> {
    /// Runs the job; returns one row for each contender.
    fn rows(&mut self) -> Result<Vec<OffsetRow>, OffsetBenchError> {
        let OffsetEffort {
            uniform_ops,
            random_ops,
            paired_rounds,
            rl_batches,
            shift_seeds,
            mix_ops,
            scatter_ops,
            ..
        } = self.effort;
        let seed = self.options.seed;
        let job = self.planned.job;
        match job {
            Job::Metadata { churn } => {
                let name = if churn { "churned" } else { "packed" };
                let churn = if churn { memory::LIVE / 2 } else { 0 };
                self.each(WorkloadId::Metadata, name, MetadataLoop { seed, churn }, metadata_row)
            }
            Job::Uniform { size } => self.each(
                WorkloadId::Uniform,
                &size.to_string(),
                UniformLoop { seed, size, ops: uniform_ops },
                |row, outcomes| uniform_row(row, size, outcomes),
            ),
            Job::Random => {
                let run = RandomLoop { seed, index: None, ops: random_ops };
                self.each(WorkloadId::Random, "", run, |row, outcomes| {
                    let published = published::random(row.contender);
                    mixed_row(row, random::POOL, outcomes);
                    set_published(row, Some(published));
                })
            }
            Job::Paired => {
                let run = PairedLoop { seed, rounds: paired_rounds };
                self.each(WorkloadId::Paired, "", run, |row, outcomes| {
                    let published = published::paired(row.contender);
                    mixed_row(row, paired::POOL, outcomes);
                    set_published(row, published);
                })
            }
            Job::Rl { producers, lifetimes } => {
                let lifetimes_name = match lifetimes {
                    Lifetimes::Object => "object",
                    Lifetimes::Batch => "batch",
                };
                let name = format!("producers={producers} lifetimes={lifetimes_name}");
                let events = Bimodal::new(seed, producers, lifetimes, rl_batches / producers);
                self.each(WorkloadId::Rl, &name, RlLoop { events: &events }, rl_row)
            }
            Job::Shift { ratio } => {
                let run = ShiftLoop { seed, seeds: shift_seeds, ratio };
                self.each(WorkloadId::Shift, &format!("B/A={ratio}"), run, shift_row)
            }
            Job::Mix { index } => {
                let run = RandomLoop { seed, index: Some(index), ops: mix_ops };
                self.each(WorkloadId::Mix, random::mixes()[index].0, run, |row, outcomes| {
                    mixed_row(row, random::POOL, outcomes);
                })
            }
            Job::Scatter { max_ranges } => {
                let run = ScatterLoop { seed, max_ranges, ops: scatter_ops };
                self.each(
                    WorkloadId::Scatter,
                    &format!("ranges<={max_ranges}"),
                    run,
                    |row, outcomes| {
                        mixed_row(row, random::POOL, outcomes);
                    },
                )
            }
        }
    }

    /// Measures every contender in turns, and fills one row for each from its repetitions.
    fn each<M, L>(
        &mut self,
        workload: WorkloadId,
        variant: &str,
        run: L,
        fill: impl Fn(&mut OffsetRow, &[M]),
    ) -> Result<Vec<OffsetRow>, OffsetBenchError>
    where
        L: Loop<Sample = M>,
    {
        let contenders = &self.planned.contenders;
        let reps = |id| self.planned.job.reps(id, &self.effort);
        let mut samples: Vec<Vec<M>> = contenders.iter().map(|_| Vec::new()).collect();
        for rep in 0..contenders.iter().map(|&id| reps(id)).max().unwrap_or(0) {
            for i in 0..contenders.len() {
                let i = (i + rep as usize) % contenders.len();
                let id = contenders[i];
                if rep >= reps(id) {
                    continue;
                }
                self.progress.step(&format!("{workload} {variant} {id}"));
                let outcome = id.visit(Measure { run, rep });
                samples[i].push(outcome.map_err(|error| OffsetBenchError {
                    workload,
                    contender: id,
                    error,
                })?);
                self.progress.advance(self.planned.job.units(id, &self.effort));
            }
        }
        let row = |(&id, outcomes): (&ContenderId, &Vec<M>)| {
            let mut row = OffsetRow::new(workload, id);
            let named = !variant.is_empty() && workload != WorkloadId::Uniform;
            row.variant = named.then(|| variant.to_owned());
            fill(&mut row, outcomes);
            self.progress.row(&row);
            row
        };
        Ok(contenders.iter().zip(&samples).map(row).collect())
    }
}
