//! The benchmark of the offset layer: one allocator of offsets on one thread.
//!
//! 1. *Rows.* A row is one contender in one workload. Every contender gets the same requests.
//! 2. *Time.* Contenders whose times are compared take turns, and the median counts.
//! 3. *Contenders.* The published allocator, in both forms, runs wherever figures were published;
//!    `null` runs wherever times are compared. Exact best fit and the crate are slow with many live
//!    objects and do not run in those rows.
//! 4. *Goals.* The report lists the performance goals and the figures of the run.

mod goals;
mod measure;
mod plan;
mod plots;
mod row;
mod suite;
mod summary;
mod tables;

pub use self::row::OffsetRow;
pub use self::suite::{OffsetDetails, OffsetSuite};
use crate::contender::ContenderId;
use crate::loops::LoopError;
use crate::machine::Machine;
use crate::neighbour::{Neighbour, NeighbourCommand, NeighbourError};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

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
    /// How to start a process that streams through memory on another processor all the time;
    /// without it the loops have the machine for themselves.
    pub neighbour: Option<NeighbourCommand>,
}

impl Default for OffsetOptions {
    fn default() -> Self {
        Self {
            seed: DEFAULT_SEED,
            quick: false,
            reps: None,
            contenders: Vec::new(),
            workloads: Vec::new(),
            neighbour: None,
        }
    }
}

/// The result of a run.
pub type OffsetReport = Report<OffsetSuite>;
/// The error that ended a run early.
pub type OffsetBenchError = BenchError<LoopError>;

/// Runs the benchmark that `options` select.
///
/// The full run takes some minutes and up to 1.5 GiB of memory (nine million live objects of 15
/// bytes, and their handles); a quick one takes well under a minute.
///
/// # Errors
/// [`OffsetBenchError`] when a contender cannot manage a space or fails a request in an empty one:
/// neither happens with these workloads unless a contender is broken. Also when the requested
/// neighbour cannot be started, or ends before the loops.
pub fn run(
    options: &OffsetOptions,
    progress: &mut dyn Progress<OffsetRow>,
) -> Result<OffsetReport, OffsetBenchError> {
    let failed = |error: NeighbourError| BenchError {
        task: "the neighbour".to_owned(),
        error: LoopError::from(error),
    };
    // Before a processor belongs to the neighbour.
    let machine = Machine::here();
    let neighbour = options.neighbour.map(Neighbour::start).transpose().map_err(failed)?;
    let mut report: OffsetReport = crate::suite::run(options, progress)?;
    report.machine = machine;
    report.details.neighbour = neighbour.map(Neighbour::end).transpose().map_err(failed)?;
    Ok(report)
}

names! {
    /// The workloads by name.
    pub enum WorkloadId ("workload", UnknownWorkloadError) {
        /// Memory that the allocator itself takes.
        Metadata = "metadata",
        /// One size at a time ([`crate::loops::uniform`]).
        Uniform = "uniform",
        /// Sizes from 1 KiB to 64 MiB ([`crate::loops::random`]).
        Random = "random",
        /// KV and index objects in 1 TiB ([`crate::loops::paired`]).
        Paired = "paired",
        /// Payloads and metadata with short lives ([`crate::loops::bimodal`]).
        Rl = "rl",
        /// A change of object size ([`crate::loops::shift`]).
        Shift = "shift",
        /// Seven other distributions ([`crate::loops::random`]).
        Mix = "mix",
        /// `random` with several ranges for a request ([`crate::loops::scatter`]).
        Scatter = "scatter",
        /// `random` and `paired` in a space with shards ([`crate::contender::kvmem::Sharded`]).
        Shards = "shards",
        /// A thousand ranges of sixteen sizes in an almost empty space ([`crate::loops::churn`]).
        Churn = "churn",
        /// One range, allocated and freed at once ([`crate::loops::pair`]).
        Pair = "pair",
        /// Requests of a full space ([`crate::loops::impossible`]).
        Impossible = "impossible",
    }
}
