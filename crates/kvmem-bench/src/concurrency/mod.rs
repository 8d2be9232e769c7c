//! The benchmark of offsets under threads: one allocator that all of them share.
//!
//! 1. *Scenarios.* The `pair-` scenarios allocate and free blocks of one size, 4 KiB, 2 MiB and
//!    3,274,752 B (a page of KV cache that is no multiple of anything). [`Scenario::HighWater`]
//!    keeps nine tenths of the space in use by blocks of those three sizes, while one request in
//!    twenty asks for half of the space, which cannot be had. [`Scenario::Impossible`] makes only
//!    such requests. In [`Scenario::Fragmented`] half of the space is free, in holes of many sizes,
//!    and sizes are random. In [`Scenario::CrossThread`] every block of 4 KiB is freed by another
//!    thread than the one that allocated it; handles are passed on 32 at a time.
//! 2. *Contenders.* The library as users hold it, a space alone and one with caches; the published
//!    allocator, modelled, behind its mutex; the library's own allocator behind one more mutex, so
//!    that never two threads are in it at once: a plain heap behind a lock; and `null`, which hands
//!    out handles and keeps no books: what the loop and handing handles on cost.
//! 3. *Operations.* An operation is one call: an allocation, a free, or a request that fails. Times
//!    of single calls are taken in a second run, as reading the clock takes longer than many calls
//!    do; what reading it takes is subtracted.

mod contender;
mod goals;
mod measure;
mod row;
mod scenario;
mod suite;

use serde::{Deserialize, Serialize};

pub use self::row::Row;
use crate::crowd;
use crate::names::names;
use crate::progress::Progress;

/// What to run. Threads: 1, 2, 4 and 16 unless others are named.
pub type Options = crowd::Options<Scenario, ContenderId>;
/// What a run found.
pub type Report = crowd::Report<Row>;
/// Why a run ended early.
pub type BenchError = crowd::BenchError<Scenario, ContenderId, MeasureError>;

/// Runs what `options` ask for.
///
/// # Errors
/// [`BenchError`] when a contender cannot be measured.
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    crowd::suite::run::<suite::Concurrency>(options, progress)
}

/// Why something could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The contender cannot manage the space.
    #[error(transparent)]
    Create(#[from] crate::contender::CreateError),
    /// A request for more than is free was served.
    #[error("a request for {size} bytes was served where less is free")]
    Served {
        /// Bytes of the request.
        size: u64,
    },
    /// An empty space had no room.
    #[error("a request for {size} bytes was refused in a space that is nearly empty")]
    Refused {
        /// Bytes of the request.
        size: u64,
    },
    /// No call returned in time.
    #[error("no call returned in the time given: give it more")]
    Nothing,
    /// A thread of the loop panicked.
    #[error("a thread panicked")]
    Panicked,
    /// A thread could not be started.
    #[error(transparent)]
    NoThread(#[from] crate::NoThread),
}

impl From<crate::crew::Failed> for MeasureError {
    fn from(failed: crate::crew::Failed) -> Self {
        match failed {
            crate::crew::Failed::Panicked => MeasureError::Panicked,
            crate::crew::Failed::NoThread(error) => MeasureError::NoThread(error),
        }
    }
}

/// The scenarios by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// 4 KiB allocated and freed.
    #[serde(rename = "pair-4k")]
    Pair4K,
    /// 2 MiB allocated and freed.
    #[serde(rename = "pair-2m")]
    Pair2M,
    /// 3,274,752 B allocated and freed.
    #[serde(rename = "pair-3274752")]
    PairOdd,
    /// Nine tenths in use, one request in twenty impossible.
    HighWater,
    /// Only impossible requests, with nine tenths in use.
    Impossible,
    /// Half in use, in pieces, random sizes.
    Fragmented,
    /// Allocated by one thread, freed by another.
    CrossThread,
}

impl Scenario {
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

    /// The name on the command line and in JSON.
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

names!(Scenario, UnknownScenario, "scenario", "A name that no scenario bears.");

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContenderId {
    /// The library under test.
    Kvmem,
    /// The library under test, hot sizes cached per thread.
    KvmemCached,
    /// The published allocator behind its mutex.
    Binned,
    /// The library's allocator behind one more mutex.
    Mutex,
    /// The loop alone.
    Null,
}

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 5] =
        [Self::Kvmem, Self::KvmemCached, Self::Binned, Self::Mutex, Self::Null];

    /// The name on the command line and in JSON.
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

names!(ContenderId, UnknownContender, "contender", "A name that no contender bears.");
