//! The benchmark of the slab layer: small memory blocks, allocated and freed.
//!
//! 1. *Patterns.* [`Pattern::Random`] is the program that introduced GLib's slice allocator: 10,000
//!    blocks for each thread, of random size up to 512 or 1024 bytes; every second one is freed and
//!    allocated again with a new size, for many rounds. [`Pattern::Fixed`] is the same with blocks
//!    of one size. In [`Pattern::ProducerConsumer`] half of the threads allocate and the other half
//!    free.
//! 2. *Contenders.* The library, the C library's malloc, mimalloc, jemalloc, snmalloc, and GLib's
//!    own allocator if the system still has it. Each is called through its own C interface; an
//!    absent one is reported as such.
//! 3. *Time.* Threads are bound to processors and all run for the whole of a fixed time. The time
//!    of a pair is processor time, waiting included: wall time, times the processors in use,
//!    divided by the pairs of all threads. It therefore stays the same if two threads do twice the
//!    work of one, and also if four threads share two processors without disturbing each other.
//! 4. *Memory.* The bytes that became resident from before the first block until all live blocks
//!    were written, before any thread ends; in `producer-consumer`, until all blocks were freed.
//!    Every measurement has its own process, so heaps share neither memory nor history.
//! 5. *Noise.* The contenders of a group take turns, each repetition starts with another one, and
//!    medians count.

mod goals;
mod heap;
mod html;
mod loops;
mod measure;
mod plan;
mod report;
mod ring;
mod suite;
mod table;

use std::process::Command;

use serde::{Deserialize, Serialize};

pub use self::measure::{SlabSample, Task, UnknownTaskError, measure};
pub use self::report::{SlabReport, SlabRow, SlabSkipped};
use crate::names::names;
use crate::progress::Progress;

/// Returns the command of a process that calls [`measure()`] with the task and prints the
/// [`SlabSample`].
pub type Child = fn(&Task) -> Command;

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct SlabOptions {
    /// Whether to use shorter and fewer repetitions: seconds instead of minutes.
    pub quick: bool,
    /// Repetitions of each measurement; the median is reported. Unless set, 9, or 3 when quick.
    pub reps: Option<u32>,
    /// Only these patterns; all when empty.
    pub patterns: Vec<Pattern>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<SlabContenderId>,
    /// Only these numbers of threads; 1 to 4 when empty.
    pub threads: Vec<u32>,
    /// How to start a process for each measurement. Without it everything is measured in this
    /// process, and resident memory, which all heaps would share, is not reported.
    pub child: Option<Child>,
}

/// Runs the benchmark that `options` select.
///
/// # Errors
/// [`SlabBenchError`] when an available contender cannot be measured. An absent one is no error:
/// see [`SlabReport::skipped`].
pub fn run(
    options: &SlabOptions,
    progress: &mut dyn Progress<SlabRow>,
) -> Result<SlabReport, SlabBenchError> {
    suite::run(options, progress)
}

/// The error that ended a run early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task}: {error}")]
pub struct SlabBenchError {
    /// The measurement.
    pub task: Task,
    /// The error.
    pub error: SlabMeasureError,
}

/// The error of one measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlabMeasureError {
    /// The allocator is absent.
    #[error("absent: {0}")]
    Absent(String),
    /// The allocator returned null.
    #[error("the allocator ran out of memory: free memory, or lower --threads")]
    OutOfMemory,
    /// No pair was completed.
    #[error("no block was allocated and freed in the given time: increase it")]
    NothingDone,
    /// The threads of the loop failed.
    #[error(transparent)]
    Team(#[from] crate::TeamError),
    /// The measuring process failed.
    #[error("the measuring process failed: {0}")]
    Child(String),
}

/// The patterns by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Half of the blocks is freed and allocated again with new random sizes.
    Random,
    /// The same with blocks of one size.
    Fixed,
    /// One thread allocates, another frees.
    ProducerConsumer,
}

impl Pattern {
    /// All patterns, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::Random, Self::Fixed, Self::ProducerConsumer];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Fixed => "fixed",
            Self::ProducerConsumer => "producer-consumer",
        }
    }
}

names!(Pattern, UnknownPatternError, "pattern", "No pattern has this name.");

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlabContenderId {
    /// The library under test.
    Kvmem,
    /// The C library's `malloc`.
    Malloc,
    /// mimalloc.
    Mimalloc,
    /// jemalloc.
    Jemalloc,
    /// snmalloc.
    Snmalloc,
    /// GLib's slice allocator.
    GSlice,
}

impl SlabContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 6] =
        [Self::Kvmem, Self::Malloc, Self::Mimalloc, Self::Jemalloc, Self::Snmalloc, Self::GSlice];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvmem => "kvmem",
            Self::Malloc => "malloc",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Snmalloc => "snmalloc",
            Self::GSlice => "g-slice",
        }
    }
}

names!(SlabContenderId, UnknownSlabContenderError, "contender", "No contender has this name.");
