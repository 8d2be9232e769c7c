//! The benchmark of keyed blocks under threads: one cache that all of them share.
//!
//! 1. *Scenarios.* 100,000 values of 256 B are held, and that is the limit. [`Scenario::GetHit`] looks keys up that are held,
//!    at random, and lets go of what it finds; [`Scenario::GetMiss`] looks up keys that are not. [`Scenario::InsertEvict`] puts in keys that
//!    have not been there, so that another value goes for each.
//! 2. *Contenders.* The library with each of its policies, over a pool; and the `quick_cache` crate's own concurrent cache with the same
//!    hash function, over counted slices of the system's heap: no registered memory, but the same work for its callers.
//! 3. *Operations.* An operation is one call, with what picks its key. Values that are found are not read, as that would be
//!    a measurement of the memory. Threads are bound to processors and all at work for the whole of a fixed time; the rate is the
//!    sum of the threads'.
//! 4. *Noise.* The contenders of a group take turns, each repetition starts with another one, and medians count.

mod contender;
mod goals;
mod html;
mod measure;
mod report;
mod suite;
mod table;

use kvmem::pool::PoolError;
use kvmem::pool::kv_cache::{KvCacheError, KvCacheSetupError};
use serde::{Deserialize, Serialize};

pub use self::report::{Report, Row};
use crate::names::names;
use crate::progress::Progress;

/// Values held.
pub const KEYS: u64 = 100_000;
/// Bytes of each.
pub const VALUE_BYTES: usize = 256;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shorter and fewer repetitions: some seconds instead of a minute.
    pub quick: bool,
    /// Repetitions of each measurement, of which the median counts; 7, or 3 when quick, unless given.
    pub reps: Option<u32>,
    /// Only these scenarios; all when empty.
    pub scenarios: Vec<Scenario>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ContenderId>,
    /// Only these numbers of threads; 1, 2 and 4 when empty.
    pub threads: Vec<u32>,
}

/// Runs what `options` ask for.
///
/// # Errors
/// [`BenchError`] when a contender cannot be measured.
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    suite::run(options, progress)
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{scenario} with {contender} on {threads} thread(s): {error}")]
pub struct BenchError {
    /// What the threads did.
    pub scenario: Scenario,
    /// The contender that ran.
    pub contender: ContenderId,
    /// How many threads.
    pub threads: u32,
    /// What happened.
    pub error: MeasureError,
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
    /// A key that is held was not found, or one that is not was.
    #[error("{wrong} of {calls} look-ups went otherwise than they must")]
    Wrong {
        /// How many.
        wrong: u64,
        /// Of how many.
        calls: u64,
    },
    /// No call returned in time.
    #[error("no call returned in the time given: give it more")]
    Nothing,
    /// A thread of the loop panicked.
    #[error("a thread panicked")]
    Panicked,
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
}

impl Scenario {
    /// All scenarios, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::GetHit, Self::GetMiss, Self::InsertEvict];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetHit => "get-hit",
            Self::GetMiss => "get-miss",
            Self::InsertEvict => "insert-evict",
        }
    }
}

names!(Scenario, UnknownScenario, "scenario", "A name that no scenario bears.");

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
}

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 3] = [Self::Kvmem, Self::KvmemScan, Self::QuickCache];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvmem => "kvmem",
            Self::KvmemScan => "kvmem-scan",
            Self::QuickCache => "quick-cache",
        }
    }
}

names!(ContenderId, UnknownContender, "contender", "A name that no contender bears.");
