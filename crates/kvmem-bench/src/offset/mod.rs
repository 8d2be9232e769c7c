//! The benchmark of the offset layer: one allocator of offsets on one thread.
//!
//! 1. *Rows.* A row is one contender in one workload. Every contender gets the same requests.
//! 2. *Time.* Machines drift while a benchmark runs. Contenders whose times are compared therefore
//!    take turns within a row, each repetition starts with another one, and the median counts.
//! 3. *Contenders.* The published allocator, in both forms, runs wherever figures were published;
//!    `null` runs wherever times are compared. Exact best fit and the crate are slow with many live
//!    objects and do not run in those rows.
//! 4. *Goals.* The report lists the performance goals and the figures of the run.

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
use crate::report::OffsetReport;

/// The default seed.
pub const DEFAULT_SEED: u64 = 20_250_718;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct OffsetOptions {
    /// Seed of all workloads.
    pub seed: u64,
    /// Whether to use shorter loops: well under a minute instead of minutes.
    pub quick: bool,
    /// Repetitions of timed loops; unless set, three, or one when quick.
    pub reps: Option<u32>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ContenderId>,
    /// Only these workloads; all when empty.
    pub workloads: Vec<WorkloadId>,
}

impl Default for OffsetOptions {
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

/// The error that ended a run early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{workload} with {contender}: {error}")]
pub struct OffsetBenchError {
    /// The workload that ran.
    pub workload: WorkloadId,
    /// The contender that ran.
    pub contender: ContenderId,
    /// The error.
    pub error: LoopError,
}

/// Runs the benchmark that `options` select.
///
/// The full run takes some minutes and up to 1.5 GiB of memory (nine million live objects of 15
/// bytes, and their handles); a quick one takes well under a minute.
///
/// # Errors
/// [`OffsetBenchError`] when a contender cannot manage a space or fails a request in an empty one.
/// Neither happens with these workloads unless a contender is broken.
pub fn run(
    options: &OffsetOptions,
    progress: &mut dyn Progress,
) -> Result<OffsetReport, OffsetBenchError> {
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

    /// Returns the name on the command line and in JSON.
    #[must_use]
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

/// No workload has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown workload {0:?}: use one of metadata, uniform, random, paired, rl, shift, mix, scatter"
)]
pub struct UnknownWorkloadError(pub String);

impl FromStr for WorkloadId {
    type Err = UnknownWorkloadError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|id| id.name() == s)
            .ok_or_else(|| UnknownWorkloadError(s.to_owned()))
    }
}
