//! The benchmark of the slab layer: small blocks of memory, allocated and freed.
//!
//! 1. *Patterns.* [`Pattern::Random`] is the program that GLib's slice allocator was presented
//!    with: 10,000 blocks for each thread, of random size up to 512 or 1024 bytes; every second one
//!    is freed and allocated again with a new size, for many rounds. [`Pattern::Fixed`] is the same
//!    with blocks of one size. In [`Pattern::ProducerConsumer`] half of the threads allocate and
//!    the other half free.
//! 2. *Contenders.* The library beside the C library's malloc, mimalloc, jemalloc, snmalloc, and
//!    GLib's own allocator where the system still has it. Each is called through its own C
//!    interface; what is absent is reported as such.
//! 3. *Time.* Threads are bound to processors and all at work for the whole of a fixed time. A
//!    pair's time is that of a processor, waiting included: the wall's, times the processors in
//!    use, over the pairs of all threads. So it stays the same where two threads do twice the work
//!    of one, and also where four threads share two processors without getting into each other's
//!    way.
//! 4. *Memory.* The bytes that became resident from before the first block until all live blocks
//!    were written, threads still there; of `producer-consumer`, until all blocks were freed. Every
//!    measurement has a process of its own, so heaps share neither memory nor history.
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

pub use self::measure::{Seen, Task, UnknownTask, measure};
pub use self::report::{Report, Row, Skipped};
use crate::names::names;
use crate::progress::Progress;

/// How to start a process that calls [`measure`] with the task and prints what it has [`Seen`].
pub type Child = fn(&Task) -> Command;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shorter and fewer repetitions: some seconds instead of some minutes.
    pub quick: bool,
    /// Repetitions of each measurement, of which the median counts; 9, or 3 when quick, unless
    /// given.
    pub reps: Option<u32>,
    /// Only these patterns; all when empty.
    pub patterns: Vec<Pattern>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ContenderId>,
    /// Only these numbers of threads; 1 to 4 when empty.
    pub threads: Vec<u32>,
    /// How to start a process for each measurement. Without it everything is measured in this one,
    /// and resident memory, which would be everybody's, is not reported.
    pub child: Option<Child>,
}

/// Runs what `options` ask for.
///
/// # Errors
/// [`BenchError`] when a contender that is there cannot be measured. One that is absent is no
/// error: see [`Report::skipped`].
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    suite::run(options, progress)
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task}: {error}")]
pub struct BenchError {
    /// What was measured.
    pub task: Task,
    /// What happened.
    pub error: MeasureError,
}

/// Why something could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The allocator is not here.
    #[error("absent: {0}")]
    Absent(String),
    /// The allocator returned null.
    #[error("the allocator had no block for a request: free memory, or lower --threads")]
    Refused,
    /// No pair was completed.
    #[error("not one block was allocated and freed in the time given: give it more")]
    Nothing,
    /// A thread of the loop panicked.
    #[error("a thread panicked")]
    Panicked,
    /// A thread could not be started.
    #[error(transparent)]
    NoThread(#[from] crate::NoThread),
    /// The process that was to measure did not.
    #[error("the process that measures failed: {0}")]
    Child(String),
}

impl From<crate::crew::Failed> for MeasureError {
    fn from(failed: crate::crew::Failed) -> Self {
        match failed {
            crate::crew::Failed::Panicked => MeasureError::Panicked,
            crate::crew::Failed::NoThread(error) => MeasureError::NoThread(error),
        }
    }
}

/// The patterns by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Half of the blocks is freed and allocated again with new random sizes.
    Random,
    /// The same with blocks of one size.
    Fixed,
    /// One thread allocates, another one frees.
    ProducerConsumer,
}

impl Pattern {
    /// All patterns, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::Random, Self::Fixed, Self::ProducerConsumer];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Fixed => "fixed",
            Self::ProducerConsumer => "producer-consumer",
        }
    }
}

names!(Pattern, UnknownPattern, "pattern", "A name that no pattern bears.");

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContenderId {
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

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 6] =
        [Self::Kvmem, Self::Malloc, Self::Mimalloc, Self::Jemalloc, Self::Snmalloc, Self::GSlice];

    /// The name on the command line and in JSON.
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

names!(ContenderId, UnknownContender, "contender", "A name that no contender bears.");
