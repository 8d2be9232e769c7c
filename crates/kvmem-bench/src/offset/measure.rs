//! The loops with their parameters, ready for any contender.

use super::plan::{Job, OffsetEffort, ShardedLoop};
use super::suite::OffsetFixture;
use crate::contender::kvmem::Sharded;
use crate::contender::{Contender, Visitor};
use crate::loops::{
    LoopError, Outcome, bimodal, churn, impossible, memory, pair, paired, random, scatter, shift,
    uniform,
};

/// Spaces that exist at the same time when resident bytes are measured.
const RESIDENT_SPACES: usize = 16;
/// The live fraction, in hundredths, at which failures are counted.
const RL_PERCENT: u64 = 95;

/// One repetition of a job, ready for any contender.
pub(super) struct Measurement<'a> {
    pub(super) job: Job,
    pub(super) fixture: &'a OffsetFixture,
    pub(super) rep: u32,
}

/// The result of one repetition.
pub(crate) enum OffsetSample {
    Metadata(MetadataBytes),
    Uniform(uniform::UniformOutcome),
    Mixed(Outcome),
    Rl(LiveFractions),
    Shift(Vec<shift::ShiftOutcome>),
    /// Nanoseconds per operation.
    Time(f64),
}

/// Bytes per live object, and bytes resident in a fresh space.
pub(crate) struct MetadataBytes {
    pub(super) per_live: Option<f64>,
    pub(super) resident: Option<u64>,
}

/// The highest live fractions, and the share of failures at a fixed one.
pub(crate) struct LiveFractions {
    pub(super) highest: bimodal::HighestLive,
    pub(super) fail_rate: f64,
    pub(super) pool: u64,
}

impl Visitor for Measurement<'_> {
    type Output = Result<OffsetSample, LoopError>;

    fn visit<C: Contender>(self) -> Self::Output {
        let OffsetFixture { seed, effort, events } = self.fixture;
        let seed = *seed;
        // Where only the time is compared, every repetition replays the same seed.
        let own_seed = seed.wrapping_add(u64::from(self.rep));
        Ok(match self.job {
            Job::Metadata { churn } => {
                let resident = if churn { None } else { memory::resident::<C>(RESIDENT_SPACES)? };
                let freed = if churn { memory::LIVE / 2 } else { 0 };
                let per_live = memory::per_live::<C>(seed, memory::LIVE, freed)?;
                OffsetSample::Metadata(MetadataBytes { per_live, resident })
            }
            Job::Uniform { size } => {
                let pool = uniform::pool_for(size);
                OffsetSample::Uniform(uniform::run::<C>(seed, size, pool, effort.uniform_ops)?)
            }
            Job::Random => {
                let sizes = random::sizes();
                let ops = effort.random_ops;
                OffsetSample::Mixed(random::run::<C>(own_seed, &sizes, random::POOL, ops)?)
            }
            Job::Mix { index } => {
                let (_, sizes) = &random::mixes()[index];
                OffsetSample::Mixed(random::run::<C>(
                    own_seed,
                    sizes,
                    random::POOL,
                    effort.mix_ops,
                )?)
            }
            Job::Paired => {
                let (warm, measured) = effort.paired_rounds;
                OffsetSample::Mixed(paired::run::<C>(own_seed, paired::POOL, warm, measured)?)
            }
            Job::Rl { .. } => {
                let events = events.as_ref().expect("the requests are prepared with the job");
                let pool = bimodal::pool_for(events, RL_PERCENT);
                let highest = bimodal::highest::<C>(events)?;
                let fail_rate = bimodal::fail_rate::<C>(events, pool)?;
                OffsetSample::Rl(LiveFractions { highest, fail_rate, pool })
            }
            Job::Shift { ratio } => {
                let seeds = (0..effort.shift_seeds).map(|i| seed.wrapping_add(i));
                let plan = shift::ShiftPlan::standard;
                let outcomes = seeds.map(|seed| shift::run::<C>(seed, plan(ratio)));
                OffsetSample::Shift(outcomes.collect::<Result<_, _>>()?)
            }
            Job::Scatter { max_ranges } => {
                let (sizes, ops) = (random::sizes(), effort.scatter_ops);
                let outcome = scatter::run::<C>(seed, &sizes, random::POOL, ops, max_ranges)?;
                OffsetSample::Mixed(outcome)
            }
            Job::Shards { of, shards } => OffsetSample::Mixed(match shards {
                1 => sharded::<1>(of, own_seed, effort)?,
                2 => sharded::<2>(of, own_seed, effort)?,
                8 => sharded::<8>(of, own_seed, effort)?,
                _ => sharded::<32>(of, own_seed, effort)?,
            }),
            Job::Churn => OffsetSample::Time(churn::run::<C>(seed, effort.short_ops)?),
            Job::Pair => OffsetSample::Time(pair::run::<C>(effort.short_ops)?),
            Job::Impossible => OffsetSample::Time(impossible::run::<C>(effort.short_ops)?),
        })
    }
}

/// Runs a loop of the workload `shards`.
fn sharded<const SHARDS: u32>(
    of: ShardedLoop,
    seed: u64,
    effort: &OffsetEffort,
) -> Result<Outcome, LoopError> {
    match of {
        ShardedLoop::Random => {
            random::run::<Sharded<SHARDS>>(seed, &random::sizes(), random::POOL, effort.random_ops)
        }
        ShardedLoop::Paired => {
            let (warm, measured) = effort.paired_rounds;
            paired::run::<Sharded<SHARDS>>(seed, paired::POOL, warm, measured)
        }
    }
}
