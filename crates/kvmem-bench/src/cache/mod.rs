//! The benchmark of pools under threads: keyed blocks in one cache that several threads share, and
//! blocks of a hot size.
//!
//! 1. *Keyed blocks.* The cache holds 100,000 values of 256 B, which is its limit.
//!    [`CacheScenario::GetHit`] looks up random cached keys and releases the values, also above a
//!    disk tier, which such a look-up does not reach;
//!    [`CacheScenario::GetMiss`] looks up keys that are not cached. [`CacheScenario::InsertEvict`]
//!    inserts new keys, each of which evicts another value. The contenders: the library with each
//!    of its policies, over a pool; the `quick_cache` crate's concurrent cache with the same hash
//!    function, over reference-counted slices of the system's heap: no registered memory, but the
//!    same service for its callers; and for look-ups a *floor*: an immutable table of the standard
//!    library without locks, pins or recency, whose entries are separate allocations as in the
//!    other tables. The floor's rate on two threads over that on one is what the machine allows.
//! 2. *Blocks.* [`CacheScenario::BlockPair`] allocates a block of 4 KiB, a hot size, and drops it:
//!    from a pool, from an [`ExtentCache`](kvmem::slab::ExtentCache), which knows of no memory, and
//!    from no allocator: the cost of the loop.
//! 3. *Hits.* [`hits`] measures the hit rates of eviction policies instead of times.
//! 4. *Operations.* An operation is one call including the choice of its key, or a pair of
//!    `allocate` and drop. Values that are found are not read, because that would measure the
//!    memory.

mod contender;
mod goals;
pub mod hits;
mod measure;
mod pairs;
mod suite;

pub use self::suite::{CacheRow, CacheSuite};
use crate::concurrent_suite::ConcurrentOptions;
use crate::progress::Progress;
use crate::suite::plan::SMALLEST;
use crate::suite::{BenchError, Report, names};
use kvmem::cache::{KvCacheError, KvCacheSetupError};
use kvmem::pool::PoolError;
use kvmem::slab::ExtentSetupError;

/// Number of values in the cache. A build without optimization takes long to insert them, and has a
/// tenth of them.
pub const KEYS: u64 = if SMALLEST { 10_000 } else { 100_000 };
/// Bytes of each value.
pub const VALUE_BYTES: usize = 256;

/// Bytes of a block in pairs.
pub const BLOCK_BYTES: usize = 4096;

/// What to run. Threads: 1, 2 and 4 unless others are named.
pub type CacheOptions = ConcurrentOptions<CacheScenario, CacheContenderId>;
/// The result of a run.
pub type CacheReport = Report<CacheSuite>;
/// The error that ended a run early.
pub type CacheBenchError = BenchError<CacheMeasureError>;

/// Runs the benchmark that `options` select.
///
/// # Errors
/// [`CacheBenchError`] when a contender cannot be measured.
pub fn run(
    options: &CacheOptions,
    progress: &mut dyn Progress<CacheRow>,
) -> Result<CacheReport, CacheBenchError> {
    crate::suite::run(options, progress)
}

/// The error of one measurement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CacheMeasureError {
    /// The pool could not be created.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The cache could not be created.
    #[error(transparent)]
    Setup(#[from] KvCacheSetupError),
    /// The disk tier could not be made.
    #[error("cannot make a disk tier in the folder for temporary files: {0}")]
    Tier(String),
    /// The node could not be made, or a call of it failed.
    #[error("the node: {0}")]
    Node(String),
    /// A value could not be inserted.
    #[error(transparent)]
    Insert(#[from] KvCacheError),
    /// A table holds too few of the inserted values.
    #[error("only {held} of {KEYS} inserted values are held")]
    Lost {
        /// Values held.
        held: u64,
    },
    /// A cached key was not found, or a key that was never inserted was.
    #[error("the look-up of key {key} had the wrong result")]
    Wrong {
        /// The key.
        key: u64,
    },
    /// The space could not be created.
    #[error(transparent)]
    Space(#[from] ExtentSetupError),
    /// A block could not be allocated although nearly all is free.
    #[error("cannot allocate a block of {BLOCK_BYTES} bytes in a nearly empty pool")]
    Failed,
    /// The contender does not support the scenario.
    #[error("the contender does not support the scenario")]
    Unsupported,
    /// No call returned in time.
    #[error("no call returned in the given time: increase it")]
    NothingDone,
    /// The threads of the loop failed.
    #[error(transparent)]
    Team(#[from] crate::TeamError),
}

names! {
    /// The scenarios by name.
    pub enum CacheScenario ("scenario", UnknownCacheScenarioError) {
        /// A cached key is looked up, and its value released.
        GetHit = "get-hit",
        /// A key that is not cached is looked up.
        GetMiss = "get-miss",
        /// A new key is inserted, and another value evicted.
        InsertEvict = "insert-evict",
        /// A block of a hot size is allocated and dropped.
        BlockPair = "block-pair",
    }
}

names! {
    /// The contenders by name.
    pub enum CacheContenderId ("contender", UnknownCacheContenderError) {
        /// The library under test, with LRU.
        Kvmem = "kvmem",
        /// The library under test, with its scan-resistant policy.
        KvmemScan = "kvmem-scan",
        /// The library under test, above a disk tier.
        KvmemTier = "kvmem-tier",
        /// The concurrent cache of `quick_cache`, over the heap.
        QuickCache = "quick-cache",
        /// An immutable table, for look-ups only.
        Floor = "floor",
        /// Blocks of a pool of the library under test.
        Pool = "pool",
        /// The ranges from which a pool takes its blocks.
        Extents = "extents",
        /// No allocator: the loop alone.
        Null = "null",
    }
}

impl CacheContenderId {
    /// Returns whether it supports a scenario.
    #[must_use]
    pub fn takes_part(self, scenario: CacheScenario) -> bool {
        match self {
            Self::Kvmem | Self::KvmemScan | Self::QuickCache => {
                scenario != CacheScenario::BlockPair
            }
            Self::KvmemTier => scenario == CacheScenario::GetHit,
            Self::Floor => matches!(scenario, CacheScenario::GetHit | CacheScenario::GetMiss),
            Self::Pool | Self::Extents | Self::Null => scenario == CacheScenario::BlockPair,
        }
    }
}
