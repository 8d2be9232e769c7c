//! The loops with their parameters, ready for any contender, and the rows made from their results.

use kvmem_testkit::workload::Bimodal;

use crate::contender::{Contender, Visitor};
use crate::loops::{LoopError, Outcome, bimodal, memory, paired, random, scatter, shift, uniform};
use crate::published;
use crate::report::OffsetRow;
use crate::stats::{Util, mean, median};

/// Spaces that exist at the same time when resident bytes are measured.
const RESIDENT_SPACES: usize = 16;
/// The live fraction, in hundredths, at which failures are counted.
const RL_PERCENT: u64 = 95;

/// A loop with all its parameters except the contender and the repetition.
pub(super) trait Loop: Copy {
    /// The result.
    type Sample;
    /// Runs the loop.
    fn run<C: Contender>(self, rep: u32) -> Result<Self::Sample, LoopError>;
}

pub(super) struct Measure<L> {
    pub(super) run: L,
    pub(super) rep: u32,
}

impl<L: Loop> Visitor for Measure<L> {
    type Output = Result<L::Sample, LoopError>;

    fn visit<C: Contender>(self) -> Self::Output {
        self.run.run::<C>(self.rep)
    }
}

#[derive(Clone, Copy)]
pub(super) struct MetadataLoop {
    pub(super) seed: u64,
    pub(super) churn: usize,
}

/// Bytes per live object, and bytes resident in a fresh space.
pub(super) struct Memory {
    pub(super) per_live: Option<f64>,
    pub(super) resident: Option<u64>,
}

impl Loop for MetadataLoop {
    type Sample = Memory;

    fn run<C: Contender>(self, _rep: u32) -> Result<Memory, LoopError> {
        let resident = if self.churn == 0 { memory::resident::<C>(RESIDENT_SPACES)? } else { None };
        Ok(Memory {
            resident,
            per_live: memory::per_live::<C>(self.seed, memory::LIVE, self.churn)?,
        })
    }
}

pub(super) fn metadata_row(row: &mut OffsetRow, samples: &[Memory]) {
    row.pool_bytes = Some(memory::RESIDENT_POOL);
    row.live = Some(memory::LIVE as u64);
    row.metadata_bytes_per_live = samples.first().and_then(|memory| memory.per_live);
    row.resident_bytes = samples.first().and_then(|memory| memory.resident);
}

#[derive(Clone, Copy)]
pub(super) struct UniformLoop {
    pub(super) seed: u64,
    pub(super) size: u64,
    pub(super) ops: u64,
}

impl Loop for UniformLoop {
    type Sample = uniform::UniformOutcome;

    fn run<C: Contender>(self, _rep: u32) -> Result<uniform::UniformOutcome, LoopError> {
        uniform::run::<C>(self.seed, self.size, uniform::pool_for(self.size), self.ops)
    }
}

pub(super) fn uniform_row(row: &mut OffsetRow, size: u64, samples: &[uniform::UniformOutcome]) {
    let pool = uniform::pool_for(size);
    row.size_bytes = Some(size);
    row.pool_bytes = Some(pool);
    row.util_bound = Some(uniform::bound(size, pool));
    // Every repetition replays the same seed: only the time differs.
    row.util_min = samples.first().map(|outcome| outcome.util_min);
    row.util_avg = samples.first().map(|outcome| outcome.util_avg);
    row.live = samples.first().map(|outcome| outcome.live as u64);
    row.ns_per_op = median(samples.iter().map(|outcome| outcome.ns_per_op).collect());
    if let Some(published) = published::uniform(row.contender, size) {
        row.published_util_min = Some(published.util_min);
        row.published_util_avg = Some(published.util_avg);
        row.published_ns = Some(published.ns);
    }
}

/// `index` selects a distribution of the mix; `None` selects the published one.
#[derive(Clone, Copy)]
pub(super) struct RandomLoop {
    pub(super) seed: u64,
    pub(super) index: Option<usize>,
    pub(super) ops: u64,
}

impl Loop for RandomLoop {
    type Sample = Outcome;

    fn run<C: Contender>(self, rep: u32) -> Result<Outcome, LoopError> {
        let sizes = self.index.map_or_else(random::sizes, |index| random::mixes()[index].1.clone());
        random::run::<C>(self.seed.wrapping_add(u64::from(rep)), &sizes, random::POOL, self.ops)
    }
}

#[derive(Clone, Copy)]
pub(super) struct PairedLoop {
    pub(super) seed: u64,
    pub(super) rounds: (u64, u64),
}

impl Loop for PairedLoop {
    type Sample = Outcome;

    fn run<C: Contender>(self, rep: u32) -> Result<Outcome, LoopError> {
        paired::run::<C>(
            self.seed.wrapping_add(u64::from(rep)),
            paired::POOL,
            self.rounds.0,
            self.rounds.1,
        )
    }
}

#[derive(Clone, Copy)]
pub(super) struct ScatterLoop {
    pub(super) seed: u64,
    pub(super) max_ranges: usize,
    pub(super) ops: u64,
}

impl Loop for ScatterLoop {
    type Sample = Outcome;

    fn run<C: Contender>(self, _rep: u32) -> Result<Outcome, LoopError> {
        scatter::run::<C>(self.seed, &random::sizes(), random::POOL, self.ops, self.max_ranges)
    }
}

/// Fills a row from repetitions with different seeds: overall extremes, means of the percentiles,
/// and the median of the times.
pub(super) fn mixed_row(row: &mut OffsetRow, pool: u64, samples: &[Outcome]) {
    let all = |pick: fn(&Util) -> f64| samples.iter().map(move |outcome| pick(&outcome.util));
    let average = |pick: fn(&Util) -> f64| mean(&all(pick).collect::<Vec<_>>());
    row.pool_bytes = Some(pool);
    row.util_min = all(|util| util.min).reduce(f64::min);
    row.util_p99 = average(|util| util.p99);
    row.util_p90 = average(|util| util.p90);
    row.util_p50 = average(|util| util.p50);
    row.util_max = all(|util| util.max).reduce(f64::max);
    row.util_avg = average(|util| util.avg);
    row.ns_per_op = median(samples.iter().map(|outcome| outcome.ns_per_op).collect());
    row.live = samples.first().map(|outcome| outcome.live as u64);
    row.samples = Some(samples.iter().map(|outcome| outcome.samples as u64).sum());
}

pub(super) fn set_published(row: &mut OffsetRow, published: Option<published::Mixed>) {
    row.published_util_min = published.map(|published| published.util.min);
    row.published_util_avg = published.map(|published| published.util.avg);
    row.published_ns = published.map(|published| published.ns);
}

#[derive(Clone, Copy)]
pub(super) struct RlLoop<'a> {
    pub(super) events: &'a Bimodal,
}

/// The highest live fractions, and the share of failures at a fixed one.
pub(super) struct Fractions {
    pub(super) highest: bimodal::Highest,
    pub(super) fail_rate: f64,
    pub(super) pool: u64,
}

impl Loop for RlLoop<'_> {
    type Sample = Fractions;

    fn run<C: Contender>(self, _rep: u32) -> Result<Fractions, LoopError> {
        let pool = bimodal::pool_for(self.events, RL_PERCENT);
        let highest = bimodal::highest::<C>(self.events)?;
        Ok(Fractions { highest, fail_rate: bimodal::fail_rate::<C>(self.events, pool)?, pool })
    }
}

pub(super) fn rl_row(row: &mut OffsetRow, samples: &[Fractions]) {
    if let Some(samples) = samples.first() {
        row.pool_bytes = Some(samples.pool);
        row.live_fraction = Some(samples.highest.few_failures);
        row.live_fraction_no_failure = Some(samples.highest.no_failure);
        row.fail_rate = Some(samples.fail_rate);
    }
}

#[derive(Clone, Copy)]
pub(super) struct ShiftLoop {
    pub(super) seed: u64,
    pub(super) seeds: u64,
    pub(super) ratio: f64,
}

impl Loop for ShiftLoop {
    type Sample = Vec<shift::ShiftOutcome>;

    fn run<C: Contender>(self, _rep: u32) -> Result<Vec<shift::ShiftOutcome>, LoopError> {
        let seeds = (0..self.seeds).map(|i| self.seed.wrapping_add(i));
        seeds.map(|seed| shift::run::<C>(seed, shift::Plan::standard(self.ratio))).collect()
    }
}

pub(super) fn shift_row(row: &mut OffsetRow, samples: &[Vec<shift::ShiftOutcome>]) {
    let seeds = samples.first().map_or(&[][..], Vec::as_slice);
    let average =
        |pick: fn(&shift::ShiftOutcome) -> f64| mean(&seeds.iter().map(pick).collect::<Vec<_>>());
    row.pool_bytes = Some(shift::POOL);
    row.util_during = average(|outcome| outcome.during);
    row.util_min = seeds.iter().map(|outcome| outcome.min).reduce(f64::min);
    row.util_avg = average(|outcome| outcome.early);
    row.util_late = average(|outcome| outcome.late);
}
