//! *Summary*: the row of a task, from its samples: medians of times, and means over repetitions
//! with different seeds.

use super::OffsetRow;
use super::measure::OffsetSample;
use super::plan::{Job, OffsetTask, ShardedLoop};
use crate::loops::shift::ShiftOutcome;
use crate::loops::{Outcome, churn, impossible, memory, pair, paired, random, shift, uniform};
use crate::published;
use crate::stats::{Utilization, mean, median};

/// Makes the row of a task.
pub(super) fn row(task: &OffsetTask, samples: &[OffsetSample]) -> OffsetRow {
    let OffsetTask { job, contender } = *task;
    let mut row = OffsetRow::new(job.workload(), contender);
    row.variant = job.variant();
    let outcomes: Vec<Outcome> = samples.iter().filter_map(mixed).collect();
    match job {
        Job::Metadata { .. } => metadata(&mut row, samples),
        Job::Uniform { size } => one_size(&mut row, size, samples),
        Job::Random => {
            mixture(&mut row, random::POOL, &outcomes);
            set_published(&mut row, Some(published::random(contender)));
        }
        Job::Paired => {
            mixture(&mut row, paired::POOL, &outcomes);
            set_published(&mut row, published::paired(contender));
        }
        Job::Mix { .. } | Job::Scatter { .. } | Job::Shards { of: ShardedLoop::Random, .. } => {
            mixture(&mut row, random::POOL, &outcomes)
        }
        Job::Shards { of: ShardedLoop::Paired, .. } => mixture(&mut row, paired::POOL, &outcomes),
        Job::Rl { .. } => live_fractions(&mut row, samples),
        Job::Shift { .. } => change(&mut row, samples),
        Job::Churn => time_only(&mut row, churn::POOL, churn::LIVE, samples),
        Job::Pair => time_only(&mut row, pair::POOL, 0, samples),
        Job::Impossible => time_only(&mut row, impossible::POOL, 1, samples),
    }
    row
}

fn mixed(sample: &OffsetSample) -> Option<Outcome> {
    match sample {
        OffsetSample::Mixed(outcome) => Some(*outcome),
        _ => None,
    }
}

fn metadata(row: &mut OffsetRow, samples: &[OffsetSample]) {
    row.pool_bytes = Some(memory::RESIDENT_POOL);
    row.live = Some(memory::LIVE as u64);
    if let Some(OffsetSample::Metadata(memory)) = samples.first() {
        row.metadata_bytes_per_live = memory.per_live;
        row.resident_bytes = memory.resident;
    }
}

fn one_size(row: &mut OffsetRow, size: u64, samples: &[OffsetSample]) {
    let pool = uniform::pool_for(size);
    row.size_bytes = Some(size);
    row.pool_bytes = Some(pool);
    row.util_bound = Some(uniform::bound(size, pool));
    // Every repetition replays the same seed: only the time differs.
    if let Some(OffsetSample::Uniform(outcome)) = samples.first() {
        row.util_min = Some(outcome.util_min);
        row.util_avg = Some(outcome.util_avg);
        row.live = Some(outcome.live as u64);
    }
    let ns = |sample: &OffsetSample| match sample {
        OffsetSample::Uniform(outcome) => Some(outcome.ns_per_op),
        _ => None,
    };
    row.ns_per_op = median(samples.iter().filter_map(ns).collect());
    if let Some(published) = published::uniform(row.contender, size) {
        row.published_util_min = Some(published.util_min);
        row.published_util_avg = Some(published.util_avg);
        row.published_ns = Some(published.ns);
    }
}

/// Fills a row from repetitions with different seeds: overall extremes, means of the percentiles,
/// and the median of the times.
fn mixture(row: &mut OffsetRow, pool: u64, outcomes: &[Outcome]) {
    let all =
        |pick: fn(&Utilization) -> f64| outcomes.iter().map(move |outcome| pick(&outcome.util));
    let average = |pick: fn(&Utilization) -> f64| mean(&all(pick).collect::<Vec<_>>());
    row.pool_bytes = Some(pool);
    row.util_min = all(|util| util.min).reduce(f64::min);
    row.util_p99 = average(|util| util.p99);
    row.util_p90 = average(|util| util.p90);
    row.util_p50 = average(|util| util.p50);
    row.util_max = all(|util| util.max).reduce(f64::max);
    row.util_avg = average(|util| util.avg);
    row.ns_per_op = median(outcomes.iter().map(|outcome| outcome.ns_per_op).collect());
    row.live = outcomes.first().map(|outcome| outcome.live as u64);
    row.samples = Some(outcomes.iter().map(|outcome| outcome.samples as u64).sum());
}

fn set_published(row: &mut OffsetRow, published: Option<published::Mixed>) {
    row.published_util_min = published.map(|published| published.util.min);
    row.published_util_avg = published.map(|published| published.util.avg);
    row.published_ns = published.map(|published| published.ns);
}

fn time_only(row: &mut OffsetRow, pool: u64, live: usize, samples: &[OffsetSample]) {
    row.pool_bytes = Some(pool);
    row.live = Some(live as u64);
    let ns = |sample: &OffsetSample| match sample {
        OffsetSample::Time(ns_per_op) => Some(*ns_per_op),
        _ => None,
    };
    row.ns_per_op = median(samples.iter().filter_map(ns).collect());
}

fn live_fractions(row: &mut OffsetRow, samples: &[OffsetSample]) {
    if let Some(OffsetSample::Rl(fractions)) = samples.first() {
        row.pool_bytes = Some(fractions.pool);
        row.live_fraction = Some(fractions.highest.few_failures);
        row.live_fraction_no_failure = Some(fractions.highest.no_failure);
        row.fail_rate = Some(fractions.fail_rate);
    }
}

fn change(row: &mut OffsetRow, samples: &[OffsetSample]) {
    let seeds = match samples.first() {
        Some(OffsetSample::Shift(seeds)) => seeds.as_slice(),
        _ => &[],
    };
    let average =
        |pick: fn(&ShiftOutcome) -> f64| mean(&seeds.iter().map(pick).collect::<Vec<_>>());
    row.pool_bytes = Some(shift::POOL);
    row.util_during = average(|outcome| outcome.during);
    row.util_min = seeds.iter().map(|outcome| outcome.min).reduce(f64::min);
    row.util_avg = average(|outcome| outcome.early);
    row.util_late = average(|outcome| outcome.late);
}
