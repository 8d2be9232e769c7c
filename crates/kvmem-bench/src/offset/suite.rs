//! Runs the plan and turns what the loops saw into rows.

use std::time::Instant;

use kvmem_testkit::workload::{Bimodal, Lifetimes};

use super::plan::{Effort, Entry, Job, entries};
use super::{BenchError, Options, WorkloadId, goals};
use crate::contender::{Contender, ContenderId, Visitor};
use crate::loops::{LoopError, Outcome, bimodal, memory, paired, random, scatter, shift, uniform};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::published;
use crate::report::{Report, Row};
use crate::stats::{Util, mean, median};

/// Spaces that exist together when residence is measured.
const RESIDENT_SPACES: usize = 16;
/// The live fraction, in hundredths, at which failures are counted.
const RL_PERCENT: u64 = 95;

pub(super) fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let start = Instant::now();
    let effort = Effort::of(options);
    let entries = entries(options);
    let units = |entry: &Entry| -> u64 {
        let of = |&id: &ContenderId| u64::from(entry.job.reps(id, &effort)) * entry.job.units(id, &effort);
        entry.contenders.iter().map(of).sum()
    };
    progress.begin(entries.iter().map(units).sum());
    let mut rows = Vec::new();
    for entry in &entries {
        let mut turn = Turn { options, effort, entry, progress };
        rows.extend(turn.rows()?);
    }
    let goals = goals::of(&rows);
    Ok(Report {
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

/// One entry of the plan.
struct Turn<'a> {
    options: &'a Options,
    effort: Effort,
    entry: &'a Entry,
    progress: &'a mut dyn Progress,
}

impl Turn<'_> {
    /// Runs the entry: one row for each contender.
    fn rows(&mut self) -> Result<Vec<Row>, BenchError> {
        let Effort {
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
        let job = self.entry.job;
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
                let whose = match lifetimes {
                    Lifetimes::Object => "object",
                    Lifetimes::Batch => "batch",
                };
                let name = format!("producers={producers} lifetimes={whose}");
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
                self.each(WorkloadId::Scatter, &format!("ranges<={max_ranges}"), run, |row, outcomes| {
                    mixed_row(row, random::POOL, outcomes);
                })
            }
        }
    }

    /// Measures every contender, taking turns, and fills one row for each from what its repetitions saw.
    fn each<M, L>(
        &mut self,
        workload: WorkloadId,
        variant: &str,
        run: L,
        fill: impl Fn(&mut Row, &[M]),
    ) -> Result<Vec<Row>, BenchError>
    where
        L: Loop<Seen = M>,
    {
        let contenders = &self.entry.contenders;
        let reps = |id| self.entry.job.reps(id, &self.effort);
        let mut seen: Vec<Vec<M>> = contenders.iter().map(|_| Vec::new()).collect();
        for rep in 0..contenders.iter().map(|&id| reps(id)).max().unwrap_or(0) {
            for i in 0..contenders.len() {
                let i = (i + rep as usize) % contenders.len();
                let id = contenders[i];
                if rep >= reps(id) {
                    continue;
                }
                self.progress.step(&format!("{workload} {variant} {id}"));
                let outcome = id.visit(Measure { run, rep });
                seen[i].push(outcome.map_err(|error| BenchError { workload, contender: id, error })?);
                self.progress.advance(self.entry.job.units(id, &self.effort));
            }
        }
        let row = |(&id, outcomes): (&ContenderId, &Vec<M>)| {
            let mut row = Row::new(workload, id);
            let named = !variant.is_empty() && workload != WorkloadId::Uniform;
            row.variant = named.then(|| variant.to_owned());
            fill(&mut row, outcomes);
            self.progress.row(&row);
            row
        };
        Ok(contenders.iter().zip(&seen).map(row).collect())
    }
}

/// A loop with all its parameters but the contender and the repetition.
trait Loop: Copy {
    /// What it saw.
    type Seen;
    /// Runs it.
    fn run<C: Contender>(self, rep: u32) -> Result<Self::Seen, LoopError>;
}

struct Measure<L> {
    run: L,
    rep: u32,
}

impl<L: Loop> Visitor for Measure<L> {
    type Output = Result<L::Seen, LoopError>;

    fn visit<C: Contender>(self) -> Self::Output {
        self.run.run::<C>(self.rep)
    }
}

#[derive(Clone, Copy)]
struct MetadataLoop {
    seed: u64,
    churn: usize,
}

/// Bytes for each live object, and bytes resident in a fresh space.
struct Memory {
    per_live: Option<f64>,
    resident: Option<u64>,
}

impl Loop for MetadataLoop {
    type Seen = Memory;

    fn run<C: Contender>(self, _rep: u32) -> Result<Memory, LoopError> {
        let resident = if self.churn == 0 { memory::resident::<C>(RESIDENT_SPACES)? } else { None };
        Ok(Memory { resident, per_live: memory::per_live::<C>(self.seed, memory::LIVE, self.churn)? })
    }
}

fn metadata_row(row: &mut Row, seen: &[Memory]) {
    row.pool_bytes = Some(memory::RESIDENT_POOL);
    row.live = Some(memory::LIVE as u64);
    row.metadata_bytes_per_live = seen.first().and_then(|memory| memory.per_live);
    row.resident_bytes = seen.first().and_then(|memory| memory.resident);
}

#[derive(Clone, Copy)]
struct UniformLoop {
    seed: u64,
    size: u64,
    ops: u64,
}

impl Loop for UniformLoop {
    type Seen = uniform::Outcome;

    fn run<C: Contender>(self, _rep: u32) -> Result<uniform::Outcome, LoopError> {
        uniform::run::<C>(self.seed, self.size, uniform::pool_for(self.size), self.ops)
    }
}

fn uniform_row(row: &mut Row, size: u64, seen: &[uniform::Outcome]) {
    let pool = uniform::pool_for(size);
    row.size_bytes = Some(size);
    row.pool_bytes = Some(pool);
    row.util_bound = Some(uniform::bound(size, pool));
    // Every repetition replays the same seed: only the time differs.
    row.util_min = seen.first().map(|outcome| outcome.util_min);
    row.util_avg = seen.first().map(|outcome| outcome.util_avg);
    row.live = seen.first().map(|outcome| outcome.live as u64);
    row.ns_per_op = median(seen.iter().map(|outcome| outcome.ns_per_op).collect());
    if let Some(published) = published::uniform(row.contender, size) {
        row.published_util_min = Some(published.util_min);
        row.published_util_avg = Some(published.util_avg);
        row.published_ns = Some(published.ns);
    }
}

/// `index` is that of a distribution of the mix; the published one without.
#[derive(Clone, Copy)]
struct RandomLoop {
    seed: u64,
    index: Option<usize>,
    ops: u64,
}

impl Loop for RandomLoop {
    type Seen = Outcome;

    fn run<C: Contender>(self, rep: u32) -> Result<Outcome, LoopError> {
        let sizes = self.index.map_or_else(random::sizes, |index| random::mixes()[index].1.clone());
        random::run::<C>(self.seed + u64::from(rep), &sizes, random::POOL, self.ops)
    }
}

#[derive(Clone, Copy)]
struct PairedLoop {
    seed: u64,
    rounds: (u64, u64),
}

impl Loop for PairedLoop {
    type Seen = Outcome;

    fn run<C: Contender>(self, rep: u32) -> Result<Outcome, LoopError> {
        paired::run::<C>(self.seed + u64::from(rep), paired::POOL, self.rounds.0, self.rounds.1)
    }
}

#[derive(Clone, Copy)]
struct ScatterLoop {
    seed: u64,
    max_ranges: usize,
    ops: u64,
}

impl Loop for ScatterLoop {
    type Seen = Outcome;

    fn run<C: Contender>(self, _rep: u32) -> Result<Outcome, LoopError> {
        scatter::run::<C>(self.seed, &random::sizes(), random::POOL, self.ops, self.max_ranges)
    }
}

/// Repetitions are seeds: extremes of all, means of the rest, and the median of the times.
fn mixed_row(row: &mut Row, pool: u64, seen: &[Outcome]) {
    let all = |pick: fn(&Util) -> f64| seen.iter().map(move |outcome| pick(&outcome.util));
    let average = |pick: fn(&Util) -> f64| mean(&all(pick).collect::<Vec<_>>());
    row.pool_bytes = Some(pool);
    row.util_min = all(|util| util.min).reduce(f64::min);
    row.util_p99 = average(|util| util.p99);
    row.util_p90 = average(|util| util.p90);
    row.util_p50 = average(|util| util.p50);
    row.util_max = all(|util| util.max).reduce(f64::max);
    row.util_avg = average(|util| util.avg);
    row.ns_per_op = median(seen.iter().map(|outcome| outcome.ns_per_op).collect());
    row.live = seen.first().map(|outcome| outcome.live as u64);
    row.samples = Some(seen.iter().map(|outcome| outcome.samples as u64).sum());
}

fn set_published(row: &mut Row, published: Option<published::Mixed>) {
    row.published_util_min = published.map(|published| published.util.min);
    row.published_util_avg = published.map(|published| published.util.avg);
    row.published_ns = published.map(|published| published.ns);
}

#[derive(Clone, Copy)]
struct RlLoop<'a> {
    events: &'a Bimodal,
}

/// The highest live fractions, and the share that fails at a set one.
struct Fractions {
    highest: bimodal::Highest,
    fail_rate: f64,
    pool: u64,
}

impl Loop for RlLoop<'_> {
    type Seen = Fractions;

    fn run<C: Contender>(self, _rep: u32) -> Result<Fractions, LoopError> {
        let pool = bimodal::pool_for(self.events, RL_PERCENT);
        let highest = bimodal::highest::<C>(self.events)?;
        Ok(Fractions { highest, fail_rate: bimodal::fail_rate::<C>(self.events, pool)?, pool })
    }
}

fn rl_row(row: &mut Row, seen: &[Fractions]) {
    if let Some(seen) = seen.first() {
        row.pool_bytes = Some(seen.pool);
        row.live_fraction = Some(seen.highest.few_failures);
        row.live_fraction_no_failure = Some(seen.highest.no_failure);
        row.fail_rate = Some(seen.fail_rate);
    }
}

#[derive(Clone, Copy)]
struct ShiftLoop {
    seed: u64,
    seeds: u64,
    ratio: f64,
}

impl Loop for ShiftLoop {
    type Seen = Vec<shift::Outcome>;

    fn run<C: Contender>(self, _rep: u32) -> Result<Vec<shift::Outcome>, LoopError> {
        let seeds = self.seed..self.seed + self.seeds;
        seeds.map(|seed| shift::run::<C>(seed, shift::Plan::standard(self.ratio))).collect()
    }
}

fn shift_row(row: &mut Row, seen: &[Vec<shift::Outcome>]) {
    let seeds = seen.first().map_or(&[][..], Vec::as_slice);
    let average = |pick: fn(&shift::Outcome) -> f64| mean(&seeds.iter().map(pick).collect::<Vec<_>>());
    row.pool_bytes = Some(shift::POOL);
    row.util_during = average(|outcome| outcome.during);
    row.util_min = seeds.iter().map(|outcome| outcome.min).reduce(f64::min);
    row.util_avg = average(|outcome| outcome.early);
    row.util_late = average(|outcome| outcome.late);
}
