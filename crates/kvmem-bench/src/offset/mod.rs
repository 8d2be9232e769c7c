//! The benchmark of the offset layer: which loops run, with whom, how long, and what goes into the
//! report.
//!
//! 1. *Rows.* A row is one contender in one workload. Every contender sees the same requests.
//! 2. *Time.* Machines drift while a benchmark runs. Contenders whose times are compared therefore
//!    take turns within a row, each repetition starts with another one, and the median counts.
//! 3. *Who runs where.* The published allocator, in both forms, runs wherever figures were
//!    published; `null` wherever time is compared. Exact best fit and the crate are slow where many
//!    objects live, and stay out of those rows.
//! 4. *Goals.* The figures that the library sets out to reach are part of the report, with what was
//!    found.

mod goals;
mod html;
mod measure;
mod plan;
mod suite;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::contender::ContenderId;
use crate::loops::LoopError;
use crate::progress::Progress;
use crate::report::Report;

/// The seed when none is given.
pub const DEFAULT_SEED: u64 = 20_250_718;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all workloads.
    pub seed: u64,
    /// Shorter loops: well under a minute instead of some minutes.
    pub quick: bool,
    /// Repetitions of timed loops; three, or one when quick, unless given.
    pub reps: Option<u32>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ContenderId>,
    /// Only these workloads; all when empty.
    pub workloads: Vec<WorkloadId>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: DEFAULT_SEED,
            quick: false,
            reps: None,
            contenders: Vec::new(),
            workloads: Vec::new(),
        }
    }
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{workload} with {contender}: {error}")]
pub struct BenchError {
    /// The workload that ran.
    pub workload: WorkloadId,
    /// The contender that ran.
    pub contender: ContenderId,
    /// What happened.
    pub error: LoopError,
}

/// Runs what `options` ask for.
///
/// The full run takes some minutes and up to 1.5 GiB of memory (nine million live objects of 15
/// bytes, and their handles); a quick one takes well under a minute.
///
/// # Errors
/// When a contender refuses a space or cannot place a request in an empty one: neither happens with
/// the workloads as they are, unless a contender is broken.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    suite::run(options, progress)
}

/// The workloads by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadId {
    /// Memory that the allocator itself takes.
    Metadata,
    /// One size at a time ([`crate::loops::uniform`]).
    Uniform,
    /// Sizes from 1 KiB to 64 MiB ([`crate::loops::random`]).
    Random,
    /// KV and index objects in 1 TiB ([`crate::loops::paired`]).
    Paired,
    /// Payloads and metadata with short lives ([`crate::loops::bimodal`]).
    Rl,
    /// A change of object size ([`crate::loops::shift`]).
    Shift,
    /// Seven other distributions ([`crate::loops::random`]).
    Mix,
    /// `random` with several ranges for a request ([`crate::loops::scatter`]).
    Scatter,
}

impl WorkloadId {
    /// All workloads, in the order in which they run.
    pub const ALL: [Self; 8] = [
        Self::Metadata,
        Self::Uniform,
        Self::Random,
        Self::Paired,
        Self::Rl,
        Self::Shift,
        Self::Mix,
        Self::Scatter,
    ];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Uniform => "uniform",
            Self::Random => "random",
            Self::Paired => "paired",
            Self::Rl => "rl",
            Self::Shift => "shift",
            Self::Mix => "mix",
            Self::Scatter => "scatter",
        }
    }
}

impl fmt::Display for WorkloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no workload bears.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no workload is called {0:?}; there are metadata, uniform, random, paired, rl, shift, mix and scatter"
)]
pub struct UnknownWorkload(pub String);

impl FromStr for WorkloadId {
    type Err = UnknownWorkload;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|id| id.name() == s).ok_or_else(|| UnknownWorkload(s.to_owned()))
    }
}
