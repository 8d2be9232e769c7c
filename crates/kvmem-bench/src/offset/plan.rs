//! *Plan* of a run: jobs, the contenders of each, and the lengths of the loops.

use kvmem_testkit::workload::Lifetimes;

use super::suite::OffsetFixture;
use super::{OffsetDetails, OffsetOptions, OffsetSuite, WorkloadId};
use crate::contender::ContenderId;
use crate::loops::{random, shift, uniform};
use crate::suite::plan::{Group, Order, SMALLEST, Turn};
use crate::suite::{Plan, SeededRepetitions, chosen};

use ContenderId::{BestFit, Binned, BinnedUnrounded, Kvmem, KvmemCached, Null, OffsetAllocator};

/// With more live objects than this, only the fast contenders run in uniform rows.
const MANY_LIVE: u64 = 20_000;
/// With more live objects than this, a quick run is too short for the allocator without rounding to
/// reach a steady state.
const STEADY_WHEN_QUICK: u64 = 5_000;

/// Lengths of the loops.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffsetEffort {
    /// Repetitions of timed loops.
    pub(super) reps: u32,
    /// Measured requests of `uniform`.
    pub(super) uniform_ops: u64,
    /// Measured requests of `random`.
    pub(super) random_ops: u64,
    /// Rounds of `paired`, warm-up and measured.
    pub(super) paired_rounds: (u64, u64),
    /// Batches of `rl`, all producers together.
    pub(super) rl_batches: usize,
    /// Seeds of `shift`.
    pub(super) shift_seeds: u64,
    /// Measured requests of each distribution of `mix`.
    pub(super) mix_ops: u64,
    /// Measured requests of `scatter`.
    pub(super) scatter_ops: u64,
    /// Operations of `churn`, `pair` and `impossible`.
    pub(super) short_ops: u64,
}

impl OffsetEffort {
    pub(super) fn of(options: &OffsetOptions) -> Self {
        let mut effort = if options.quick && SMALLEST {
            Self {
                reps: 1,
                uniform_ops: 10_000,
                random_ops: 10_000,
                // As many as fill the pool, and as many as evict once.
                paired_rounds: (4_400, 400),
                rl_batches: 1_000,
                shift_seeds: 1,
                mix_ops: 10_000,
                scatter_ops: 5_000,
                short_ops: 10_000,
            }
        } else if options.quick {
            Self {
                reps: 1,
                uniform_ops: 200_000,
                random_ops: 300_000,
                paired_rounds: (5_000, 5_000),
                rl_batches: 8_000,
                shift_seeds: 1,
                mix_ops: 100_000,
                scatter_ops: 50_000,
                short_ops: 500_000,
            }
        } else {
            Self {
                reps: 3,
                uniform_ops: 1_000_000,
                random_ops: 1_000_000,
                paired_rounds: (5_000, 50_000),
                rl_batches: 64_000,
                shift_seeds: 3,
                mix_ops: 1_000_000,
                scatter_ops: 250_000,
                short_ops: 3_000_000,
            }
        };
        if let Some(reps) = options.reps {
            effort.reps = reps.max(1);
        }
        effort
    }
}

/// The numbers of shards of the workload `shards`: none, and as many as a few, some and many cores
/// need.
pub(super) const SHARDS: [u32; 4] = [1, 2, 8, 32];

/// A loop of the workload `shards`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ShardedLoop {
    /// [`random`].
    Random,
    /// [`paired`](crate::loops::paired).
    Paired,
}

/// One workload in one variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Job {
    /// Metadata of a live set, packed or churned, and of a fresh space.
    Metadata { churn: bool },
    /// One size.
    Uniform { size: u64 },
    /// The published mixture.
    Random,
    /// The published pair.
    Paired,
    /// The number of producers and the lifetimes of their objects.
    Rl { producers: usize, lifetimes: Lifetimes },
    /// From size A to `ratio` · A.
    Shift { ratio: f64 },
    /// The distribution with this index.
    Mix { index: usize },
    /// At most this many ranges per request.
    Scatter { max_ranges: usize },
    /// A loop in a space with this many shards.
    Shards { of: ShardedLoop, shards: u32 },
    /// Exchanges in an almost empty space.
    Churn,
    /// One range at a time.
    Pair,
    /// Requests of a full space.
    Impossible,
}

impl Job {
    /// Returns all jobs of `workload`.
    fn of(workload: WorkloadId) -> Vec<Self> {
        match workload {
            WorkloadId::Metadata => [false, true].map(|churn| Self::Metadata { churn }).to_vec(),
            WorkloadId::Uniform => {
                uniform::sizes().into_iter().map(|size| Self::Uniform { size }).collect()
            }
            WorkloadId::Random => vec![Self::Random],
            WorkloadId::Paired => vec![Self::Paired],
            WorkloadId::Rl => [Lifetimes::Object, Lifetimes::Batch]
                .into_iter()
                .flat_map(|lifetimes| [1, 2, 8].map(|producers| Self::Rl { producers, lifetimes }))
                .collect(),
            WorkloadId::Shift => shift::RATIOS.map(|ratio| Self::Shift { ratio }).to_vec(),
            WorkloadId::Mix => {
                (0..random::mixes().len()).map(|index| Self::Mix { index }).collect()
            }
            WorkloadId::Scatter => [2, 4].map(|max_ranges| Self::Scatter { max_ranges }).to_vec(),
            WorkloadId::Shards => [ShardedLoop::Random, ShardedLoop::Paired]
                .into_iter()
                .flat_map(|of| SHARDS.map(|shards| Self::Shards { of, shards }))
                .collect(),
            WorkloadId::Churn => vec![Self::Churn],
            WorkloadId::Pair => vec![Self::Pair],
            WorkloadId::Impossible => vec![Self::Impossible],
        }
    }

    /// Returns the workload.
    pub(super) fn workload(self) -> WorkloadId {
        match self {
            Self::Metadata { .. } => WorkloadId::Metadata,
            Self::Uniform { .. } => WorkloadId::Uniform,
            Self::Random => WorkloadId::Random,
            Self::Paired => WorkloadId::Paired,
            Self::Rl { .. } => WorkloadId::Rl,
            Self::Shift { .. } => WorkloadId::Shift,
            Self::Mix { .. } => WorkloadId::Mix,
            Self::Scatter { .. } => WorkloadId::Scatter,
            Self::Shards { .. } => WorkloadId::Shards,
            Self::Churn => WorkloadId::Churn,
            Self::Pair => WorkloadId::Pair,
            Self::Impossible => WorkloadId::Impossible,
        }
    }

    /// Returns what distinguishes it from other jobs of its workload.
    pub(super) fn form(self) -> Option<String> {
        match self {
            Self::Uniform { size } => Some(size.to_string()),
            other => other.variant(),
        }
    }

    /// Returns the variant of the workload in reports. The rows of `uniform` have their size.
    pub(super) fn variant(self) -> Option<String> {
        match self {
            Self::Metadata { churn: false } => Some("packed".to_owned()),
            Self::Metadata { churn: true } => Some("churned".to_owned()),
            Self::Uniform { .. }
            | Self::Random
            | Self::Paired
            | Self::Churn
            | Self::Pair
            | Self::Impossible => None,
            Self::Rl { producers, lifetimes: Lifetimes::Object } => {
                Some(format!("producers={producers} lifetimes=object"))
            }
            Self::Rl { producers, lifetimes: Lifetimes::Batch } => {
                Some(format!("producers={producers} lifetimes=batch"))
            }
            Self::Shift { ratio } => Some(format!("B/A={ratio}")),
            Self::Mix { index } => Some(random::mixes()[index].0.to_owned()),
            Self::Scatter { max_ranges } => Some(format!("ranges<={max_ranges}")),
            Self::Shards { of: ShardedLoop::Random, shards } => Some(format!("random n={shards}")),
            Self::Shards { of: ShardedLoop::Paired, shards } => Some(format!("paired n={shards}")),
        }
    }

    /// Returns the contenders that can take part.
    fn supported(self) -> &'static [ContenderId] {
        match self {
            Self::Metadata { .. } => &[Kvmem, Binned],
            Self::Shards { .. } => &[Kvmem],
            Self::Uniform { .. } | Self::Random | Self::Mix { .. } => &ContenderId::ALL,
            // The crate manages at most 3.75 GiB.
            Self::Paired | Self::Shift { .. } | Self::Churn | Self::Pair | Self::Impossible => {
                &[Kvmem, KvmemCached, Binned, BinnedUnrounded, BestFit, Null]
            }
            Self::Rl { .. } => {
                &[Kvmem, KvmemCached, Binned, BinnedUnrounded, OffsetAllocator, BestFit]
            }
            Self::Scatter { .. } => &[Kvmem, KvmemCached, BestFit],
        }
    }

    /// Returns the contenders that take part by default.
    fn default_contenders(self, quick: bool) -> &'static [ContenderId] {
        match self {
            Self::Uniform { size } => {
                let live = uniform::pool_for(size) / size;
                if quick && live <= STEADY_WHEN_QUICK {
                    &[Kvmem, KvmemCached, Binned, BinnedUnrounded, Null]
                } else if quick {
                    &[Kvmem, KvmemCached, Binned, Null]
                } else if live <= MANY_LIVE {
                    &ContenderId::ALL
                } else {
                    &[Kvmem, KvmemCached, Binned, BinnedUnrounded, Null]
                }
            }
            Self::Paired if quick => &[Kvmem, KvmemCached, Binned, Null],
            Self::Rl { .. } | Self::Shift { .. } => &[Kvmem, Binned, BestFit],
            Self::Mix { .. } => &[Kvmem, Binned, BestFit, Null],
            Self::Scatter { .. } => &[Kvmem, BestFit],
            Self::Metadata { .. }
            | Self::Random
            | Self::Paired
            | Self::Shards { .. }
            | Self::Churn
            | Self::Pair
            | Self::Impossible => self.supported(),
        }
    }

    /// Returns the repetitions of `contender`: one if its time is not compared.
    fn reps(self, contender: ContenderId, effort: &OffsetEffort) -> u32 {
        match self {
            // The goal is a mean of three seeds.
            Self::Random | Self::Shards { of: ShardedLoop::Random, .. } => effort.reps.max(3),
            Self::Shards { of: ShardedLoop::Paired, .. } => effort.reps,
            Self::Uniform { .. } | Self::Paired
                if matches!(contender, Kvmem | KvmemCached | Binned | Null) =>
            {
                effort.reps
            }
            Self::Mix { .. } if contender != BestFit => effort.reps,
            Self::Scatter { .. } | Self::Churn | Self::Pair | Self::Impossible => effort.reps,
            _ => 1,
        }
    }

    /// Estimates the milliseconds of one measurement.
    fn units(self, contender: ContenderId, effort: &OffsetEffort) -> u64 {
        let ns = |live: u64| match contender {
            Null => 30,
            BestFit => 400,
            _ if live > MANY_LIVE => 250,
            _ => 120,
        };
        let batches = effort.rl_batches as u64;
        let nanoseconds = match self {
            Self::Metadata { .. } => 500_000_000,
            Self::Uniform { size } => {
                let live = uniform::pool_for(size) / size;
                effort.uniform_ops * ns(live) + live * 100
            }
            Self::Random | Self::Shards { of: ShardedLoop::Random, .. } => {
                effort.random_ops * ns(0)
            }
            Self::Paired | Self::Shards { of: ShardedLoop::Paired, .. } => {
                (effort.paired_rounds.0 + effort.paired_rounds.1) * 129 * ns(1 << 20)
            }
            Self::Rl { .. } => batches * 34 * ns(0) * 6,
            Self::Shift { .. } => effort.shift_seeds * 200_000_000,
            Self::Mix { .. } => effort.mix_ops * ns(0),
            Self::Scatter { .. } => effort.scatter_ops * 500,
            Self::Churn | Self::Pair => effort.short_ops * ns(0),
            Self::Impossible => effort.short_ops * 10,
        };
        nanoseconds / 1_000_000 + 1
    }
}

/// One contender in a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffsetTask {
    pub(super) job: Job,
    pub(super) contender: ContenderId,
}

/// Returns the plan that `options` select: the contenders of a job take turns.
pub(super) fn plan(options: &OffsetOptions) -> Plan<OffsetSuite> {
    let effort = OffsetEffort::of(options);
    let jobs = chosen(&options.workloads).into_iter().flat_map(Job::of);
    let group = |job: Job| {
        let contenders = if options.contenders.is_empty() {
            job.default_contenders(options.quick).to_vec()
        } else {
            let named = |id: &ContenderId| options.contenders.contains(id);
            job.supported().iter().copied().filter(named).collect()
        };
        let turn = |contender| Turn {
            task: OffsetTask { job, contender },
            reps: job.reps(contender, &effort),
            units: job.units(contender, &effort),
        };
        Group { turns: contenders.into_iter().map(turn).collect(), order: Order::Rotated }
    };
    let run = SeededRepetitions { seed: options.seed, reps: effort.reps };
    Plan {
        quick: options.quick,
        groups: jobs.map(group).filter(|group| !group.turns.is_empty()).collect(),
        skipped: Vec::new(),
        fixture: OffsetFixture { seed: options.seed, effort, events: None },
        details: OffsetDetails { run, neighbour: None },
    }
}
