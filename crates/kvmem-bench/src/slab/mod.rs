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
//! 5. *Noise.* The contenders take turns for each pattern, size and number of threads, and medians
//!    count.

mod goals;
mod heap;
mod loops;
mod measure;
mod plan;
mod ring;
mod sections;
mod suite;
mod task;

use std::process::Command;

pub use self::measure::{SlabSample, measure};
pub use self::suite::{SlabRow, SlabSkipped, SlabSuite};
pub use self::task::{SlabTask, UnknownTaskError};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// Returns the command of a process that calls [`measure()`] with the task and prints the
/// [`SlabSample`].
pub type ChildCommand = fn(&SlabTask) -> Command;

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
    pub child: Option<ChildCommand>,
}

/// The result of a run.
pub type SlabReport = Report<SlabSuite>;
/// The error that ended a run early.
pub type SlabBenchError = BenchError<SlabMeasureError>;

/// Runs the benchmark that `options` select.
///
/// # Errors
/// [`SlabBenchError`] when an available contender cannot be measured. An absent one is no error:
/// see [`skipped`](Report::skipped).
pub fn run(
    options: &SlabOptions,
    progress: &mut dyn Progress<SlabRow>,
) -> Result<SlabReport, SlabBenchError> {
    crate::suite::run(options, progress)
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

names! {
    /// The patterns by name.
    pub enum Pattern ("pattern", UnknownPatternError) {
        /// Half of the blocks is freed and allocated again with new random sizes.
        Random = "random",
        /// The same with blocks of one size.
        Fixed = "fixed",
        /// One thread allocates, another frees.
        ProducerConsumer = "producer-consumer",
    }
}

names! {
    /// The contenders by name.
    pub enum SlabContenderId ("contender", UnknownSlabContenderError) {
        /// The library under test.
        Kvmem = "kvmem",
        /// The C library's `malloc`.
        Malloc = "malloc",
        /// mimalloc.
        Mimalloc = "mimalloc",
        /// jemalloc.
        Jemalloc = "jemalloc",
        /// snmalloc.
        Snmalloc = "snmalloc",
        /// GLib's slice allocator.
        GSlice = "g-slice",
    }
}
