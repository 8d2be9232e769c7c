//! The benchmark of one allocator of offsets that several threads share.
//!
//! 1. *Scenarios.* The `pair-` scenarios allocate and free blocks of one size: 4 KiB, 2 MiB and
//!    3,274,752 B (a page of KV cache that is no multiple of a power of two).
//!    [`ConcurrencyScenario::HighWater`] keeps nine tenths of the space in use by blocks of those
//!    three sizes, while one request in twenty is for half of the space and must fail.
//!    [`ConcurrencyScenario::Impossible`] makes only such requests;
//!    [`ConcurrencyScenario::TooFragmented`] makes requests that the free bytes could serve, but
//!    none of the holes can. In
//!    [`ConcurrencyScenario::Fragmented`] half of the space is free, in holes of many sizes, and
//!    request sizes are random. In [`ConcurrencyScenario::CrossThread`] every block of 4 KiB is
//!    freed by a thread other than the one that allocated it; handles are passed on in batches of
//!    32.
//! 2. *Contenders.* The library as users hold it, both a bare space and one with caches; a model of
//!    the published allocator behind its mutex; the library's own allocator behind an additional
//!    mutex, so at most one thread is in it at a time: a plain heap behind a lock; and `null`,
//!    which creates handles and keeps no metadata: the cost of the loop and of passing handles on.
//!    A space with eight shards takes part in `fragmented`, where threads share one lock otherwise.
//! 3. *Operations.* An operation is one call: an allocation, a free, or a request that fails. Times
//!    of single calls are measured in a second run, because reading the clock takes longer than
//!    many calls; the cost of reading it is subtracted.

mod contender;
mod goals;
mod measure;
mod recording;
mod scenario;
mod suite;

use std::time::Duration;

pub(crate) use self::recording::{RecordedCall, Recording, record};
pub(crate) use self::scenario::{CAPACITY, CallKind};
pub use self::suite::{ConcurrencyRow, ConcurrencySuite};
use crate::concurrent_suite::ConcurrentOptions;
use crate::contender::Contender;
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// The options of a run. Threads: 1, 2, 4 and 16 unless others are named.
pub type ConcurrencyOptions = ConcurrentOptions<ConcurrencyScenario, ConcurrencyContenderId>;
/// The result of a run.
pub type ConcurrencyReport = Report<ConcurrencySuite>;
/// The error that ended a run early.
pub type ConcurrencyBenchError = BenchError<ConcurrencyMeasureError>;

/// Runs the benchmark that `options` select.
///
/// # Errors
/// [`ConcurrencyBenchError`] when a contender cannot be measured.
pub fn run(
    options: &ConcurrencyOptions,
    progress: &mut dyn Progress<ConcurrencyRow>,
) -> Result<ConcurrencyReport, ConcurrencyBenchError> {
    crate::suite::run(options, progress)
}

/// Returns the rate of an allocator of the caller in a scenario: million calls per second of all
/// threads together, measured for `time`.
///
/// # Errors
/// [`ConcurrencyMeasureError`] when the allocator cannot be measured.
pub fn rate<C: Contender<Handle: Send> + Sync>(
    scenario: ConcurrencyScenario,
    threads: u32,
    time: Duration,
) -> Result<f64, ConcurrencyMeasureError> {
    measure::rate::<contender::Unchanged<C>>(scenario, threads, time)
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

names! {
    /// The scenarios by name.
    pub enum ConcurrencyScenario ("scenario", UnknownConcurrencyScenarioError) {
        /// 4 KiB allocated and freed.
        Pair4K = "pair-4k",
        /// 2 MiB allocated and freed.
        Pair2M = "pair-2m",
        /// 3,274,752 B allocated and freed.
        PairOdd = "pair-3274752",
        /// Nine tenths in use, one request in twenty must fail.
        HighWater = "high-water",
        /// Only requests that must fail, with nine tenths in use.
        Impossible = "impossible",
        /// Only requests that must fail, with half in use: no hole is long enough.
        TooFragmented = "too-fragmented",
        /// Half in use, fragmented, random sizes.
        Fragmented = "fragmented",
        /// Allocated by one thread, freed by another.
        CrossThread = "cross-thread",
    }
}

names! {
    /// The contenders by name.
    pub enum ConcurrencyContenderId ("contender", UnknownConcurrencyContenderError) {
        /// The library under test.
        Kvmem = "kvmem",
        /// The library under test, hot sizes cached per thread.
        KvmemCached = "kvmem-cached",
        /// The published allocator behind its mutex.
        Binned = "binned",
        /// The library's allocator behind an additional mutex.
        Mutex = "mutex",
        /// No allocator: the loop alone.
        Null = "null",
        /// The library under test with eight shards, in `fragmented`.
        KvmemShards = "kvmem-shards-8",
    }
}
