//! The benchmark of one allocator of offsets that several threads share.
//!
//! 1. *Scenarios.* The `pair-` scenarios allocate and free blocks of one size: 4 KiB, 2 MiB and
//!    3,274,752 B (a page of KV cache that is no multiple of a power of two).
//!    [`ConcurrencyScenario::HighWater`] keeps nine tenths of the space in use by blocks of those
//!    three sizes, while one request in twenty is for half of the space and must fail.
//!    [`ConcurrencyScenario::Impossible`] makes only such requests. In
//!    [`ConcurrencyScenario::Fragmented`] half of the space is free, in holes of many sizes, and
//!    request sizes are random. In [`ConcurrencyScenario::CrossThread`] every block of 4 KiB is
//!    freed by a thread other than the one that allocated it; handles are passed on in batches of
//!    32.
//! 2. *Contenders.* The library as users hold it, both a bare space and one with caches; a model of
//!    the published allocator behind its mutex; the library's own allocator behind an additional
//!    mutex, so at most one thread is in it at a time: a plain heap behind a lock; and `null`,
//!    which creates handles and keeps no metadata: the cost of the loop and of passing handles on.
//! 3. *Operations.* An operation is one call: an allocation, a free, or a request that fails. Times
//!    of single calls are measured in a second run, because reading the clock takes longer than
//!    many calls; the cost of reading it is subtracted.

mod contender;
mod goals;
mod measure;
mod row;
mod scenario;
mod suite;

use serde::{Deserialize, Serialize};

pub use self::row::ConcurrencyRow;
use crate::concurrent_suite;
use crate::names::names;
use crate::progress::Progress;

/// The options of a run. Threads: 1, 2, 4 and 16 unless others are named.
pub type ConcurrencyOptions =
    concurrent_suite::SuiteOptions<ConcurrencyScenario, ConcurrencyContenderId>;
/// The result of a run.
pub type ConcurrencyReport = concurrent_suite::SuiteReport<ConcurrencyRow>;
/// The error that ended a run early.
pub type ConcurrencyBenchError = concurrent_suite::SuiteBenchError<
    ConcurrencyScenario,
    ConcurrencyContenderId,
    ConcurrencyMeasureError,
>;

/// Runs the benchmark that `options` select.
///
/// # Errors
/// [`ConcurrencyBenchError`] when a contender cannot be measured.
pub fn run(
    options: &ConcurrencyOptions,
    progress: &mut dyn Progress<ConcurrencyRow>,
) -> Result<ConcurrencyReport, ConcurrencyBenchError> {
    concurrent_suite::suite::run::<suite::Concurrency>(options, progress)
}

/// The error of one measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConcurrencyMeasureError {
    /// The contender cannot manage the space.
    #[error(transparent)]
    Create(#[from] crate::contender::CreateError),
    /// A request for more than the free bytes succeeded.
    #[error("a request for {size} bytes succeeded although fewer are free")]
    Served {
        /// Bytes of the request.
        size: u64,
    },
    /// A request failed in a nearly empty space.
    #[error("a request for {size} bytes failed in a nearly empty space")]
    Failed {
        /// Bytes of the request.
        size: u64,
    },
    /// No call returned in time.
    #[error("no call returned in the given time: increase it")]
    NothingDone,
    /// The threads of the loop failed.
    #[error(transparent)]
    Team(#[from] crate::TeamError),
}

/// The scenarios by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConcurrencyScenario {
    /// 4 KiB allocated and freed.
    #[serde(rename = "pair-4k")]
    Pair4K,
    /// 2 MiB allocated and freed.
    #[serde(rename = "pair-2m")]
    Pair2M,
    /// 3,274,752 B allocated and freed.
    #[serde(rename = "pair-3274752")]
    PairOdd,
    /// Nine tenths in use, one request in twenty must fail.
    HighWater,
    /// Only requests that must fail, with nine tenths in use.
    Impossible,
    /// Half in use, fragmented, random sizes.
    Fragmented,
    /// Allocated by one thread, freed by another.
    CrossThread,
}

impl ConcurrencyScenario {
    /// All scenarios, in the order in which they run.
    pub const ALL: [Self; 7] = [
        Self::Pair4K,
        Self::Pair2M,
        Self::PairOdd,
        Self::HighWater,
        Self::Impossible,
        Self::Fragmented,
        Self::CrossThread,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pair4K => "pair-4k",
            Self::Pair2M => "pair-2m",
            Self::PairOdd => "pair-3274752",
            Self::HighWater => "high-water",
            Self::Impossible => "impossible",
            Self::Fragmented => "fragmented",
            Self::CrossThread => "cross-thread",
        }
    }
}

names!(
    ConcurrencyScenario,
    UnknownConcurrencyScenarioError,
    "scenario",
    "No scenario has this name."
);

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConcurrencyContenderId {
    /// The library under test.
    Kvmem,
    /// The library under test, hot sizes cached per thread.
    KvmemCached,
    /// The published allocator behind its mutex.
    Binned,
    /// The library's allocator behind an additional mutex.
    Mutex,
    /// No allocator: the loop alone.
    Null,
}

impl ConcurrencyContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 5] =
        [Self::Kvmem, Self::KvmemCached, Self::Binned, Self::Mutex, Self::Null];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvmem => "kvmem",
            Self::KvmemCached => "kvmem-cached",
            Self::Binned => "binned",
            Self::Mutex => "mutex",
            Self::Null => "null",
        }
    }
}

names!(
    ConcurrencyContenderId,
    UnknownConcurrencyContenderError,
    "contender",
    "No contender has this name."
);
