//! The benchmark of pools under threads: keyed blocks in one cache that all of them share, and
//! blocks of a hot size.
//!
//! 1. *Keyed blocks.* 100,000 values of 256 B are held, and that is the limit. [`Scenario::GetHit`]
//!    looks keys up that are held, at random, and lets go of what it finds; [`Scenario::GetMiss`]
//!    looks up keys that are not. [`Scenario::InsertEvict`] puts in keys that have not been there,
//!    so that another value goes for each. The contenders: the library with each of its policies,
//!    over a pool; the `quick_cache` crate's own concurrent cache with the same hash function, over
//!    counted slices of the system's heap: no registered memory, but the same work for its callers;
//!    and for look-ups a *floor*: a table of the standard library that nobody may change, without
//!    locks, pins or uses, whose entries stand apart as they do here. What its rate does from one
//!    thread to two is what the machine gives.
//! 2. *Blocks.* [`Scenario::BlockPair`] has a block of 4 KiB, a hot size, and drops it, from a
//!    pool, from an [`ExtentCache`](kvmem::slab::ExtentCache), which knows of no memory, and from
//!    nothing at all: what the loop costs.
//! 3. *Hits.* [`hits`] measures no times: which share of blocks each policy of eviction finds.
//! 4. *Operations.* An operation is one call, with what picks its key; or a pair of `allocate` and
//!    drop. Values that are found are not read, as that would be a measurement of the memory.

mod contender;
mod goals;
pub mod hits;
mod measure;
mod pairs;
mod row;
mod suite;

use kvmem::pool::PoolError;
use kvmem::pool::kv_cache::{KvCacheError, KvCacheSetupError};
use kvmem::slab::ExtentSetupError;
use serde::{Deserialize, Serialize};

pub use self::row::Row;
use crate::concurrent_suite;
use crate::names::names;
use crate::progress::Progress;

/// Values held.
pub const KEYS: u64 = 100_000;
/// Bytes of each.
pub const VALUE_BYTES: usize = 256;

/// Bytes of a block in pairs.
pub const BLOCK_BYTES: usize = 4096;

/// What to run. Threads: 1, 2 and 4 unless others are named.
pub type Options = concurrent_suite::Options<Scenario, ContenderId>;
/// What a run found.
pub type Report = concurrent_suite::Report<Row>;
/// Why a run ended early.
pub type BenchError = concurrent_suite::BenchError<Scenario, ContenderId, MeasureError>;

/// Runs what `options` ask for.
///
/// # Errors
/// [`BenchError`] when a contender cannot be measured.
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    concurrent_suite::suite::run::<suite::Caches>(options, progress)
}

/// Why something could not be measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MeasureError {
    /// There is no pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// There is no cache.
    #[error(transparent)]
    Setup(#[from] KvCacheSetupError),
    /// A value was refused.
    #[error(transparent)]
    Insert(#[from] KvCacheError),
    /// A table has lost too many of the values put in.
    #[error("of {KEYS} values put in only {held} are held")]
    Lost {
        /// Values held.
        held: u64,
    },
    /// A key that is held was not found, or one that is not was.
    #[error("the look-up of key {key} went otherwise than it must")]
    Wrong {
        /// The key.
        key: u64,
    },
    /// There is no space.
    #[error(transparent)]
    Space(#[from] ExtentSetupError),
    /// A block was refused where nearly all is free.
    #[error("a block of {BLOCK_BYTES} bytes was refused in a pool that is nearly empty")]
    Refused,
    /// The contender cannot do what the scenario asks for.
    #[error("the contender has no part in the scenario")]
    NoPart,
    /// No call returned in time.
    #[error("no call returned in the time given: give it more")]
    Nothing,
    /// The threads of the loop failed.
    #[error(transparent)]
    Team(#[from] crate::TeamError),
}

/// The scenarios by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A key that is held is looked up, and its value let go.
    GetHit,
    /// A key that is not held is looked up.
    GetMiss,
    /// A new key is put in, and another value goes.
    InsertEvict,
    /// A block of a hot size is allocated and dropped.
    BlockPair,
}

impl Scenario {
    /// All scenarios, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::GetHit, Self::GetMiss, Self::InsertEvict, Self::BlockPair];

    /// The name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GetHit => "get-hit",
            Self::GetMiss => "get-miss",
            Self::InsertEvict => "insert-evict",
            Self::BlockPair => "block-pair",
        }
    }
}

names!(Scenario, UnknownScenarioError, "scenario", "No scenario has this name.");

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContenderId {
    /// The library under test, least recently used first.
    Kvmem,
    /// The library under test, its scan-resistant policy.
    KvmemScan,
    /// The concurrent cache of `quick_cache`, over the heap.
    QuickCache,
    /// A table that nobody changes, for look-ups alone.
    Floor,
    /// Blocks of a pool of the library under test.
    Pool,
    /// The ranges that a pool has its blocks from.
    Extents,
    /// The loop alone.
    Null,
}

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 7] = [
        Self::Kvmem,
        Self::KvmemScan,
        Self::QuickCache,
        Self::Floor,
        Self::Pool,
        Self::Extents,
        Self::Null,
    ];

    /// The name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvmem => "kvmem",
            Self::KvmemScan => "kvmem-scan",
            Self::QuickCache => "quick-cache",
            Self::Floor => "floor",
            Self::Pool => "pool",
            Self::Extents => "extents",
            Self::Null => "null",
        }
    }

    /// Whether it can do what the threads of a scenario do.
    #[must_use]
    pub fn takes_part(self, scenario: Scenario) -> bool {
        match self {
            Self::Kvmem | Self::KvmemScan | Self::QuickCache => scenario != Scenario::BlockPair,
            Self::Floor => matches!(scenario, Scenario::GetHit | Scenario::GetMiss),
            Self::Pool | Self::Extents | Self::Null => scenario == Scenario::BlockPair,
        }
    }
}

names!(ContenderId, UnknownContenderError, "contender", "No contender has this name.");
