//! The benchmark of the arena layer: bump allocation, and populating memory.
//!
//! 1. *Operations.* [`Op::Bump`] allocates 64 B and 4 KiB on 1, 2 and 8 threads; [`Op::BumpFull`]
//!    is the same call on a full arena. [`Op::Populate`] maps memory and makes it resident,
//!    [`Op::Discard`] returns its pages, [`Op::Map`] maps 1 TiB and leaves it untouched.
//! 2. *Contenders.* kvmem's bump arena is compared with a mutex, the crate `bumpalo` and a model of
//!    the published arena that it descends from ([`bump`]). Its populated regions are compared with
//!    one thread that uses `MAP_POPULATE` and one thread that writes to each page.
//! 3. *Time.* A bump allocation computes and never waits, so its time is the processor time of its
//!    thread, the mean of the threads. Callers wait for populating, so its time is wall time, from
//!    before the mapping until the memory is resident; unmapping is not part of it.
//! 4. *Noise.* In a virtual machine, the first touch of memory that was returned to the host costs
//!    many times as much as the second. The memory is therefore populated once before the clock
//!    runs. Tasks that are compared take turns, and medians count.
//! 5. *Missing rows.* Rows need their kind of pages. Missing hugepages of 2 MiB are
//!    [borrowed](crate::hugepages) if the options allow it, and returned however the run ends. Rows
//!    that this machine cannot measure are absent, and the report says why.

pub mod bump;
mod goals;
pub(crate) mod mapping;
mod measure;
mod plan;
pub(crate) mod region;
mod sections;
mod suite;

pub use self::suite::{ArenaDetails, ArenaRow, ArenaSkipped, ArenaSuite};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct ArenaOptions {
    /// Whether to use less memory and fewer repetitions: seconds instead of minutes.
    pub quick: bool,
    /// Repetitions of each measurement; the median is reported. Unless set, 15 for bump and 5 for
    /// pages, or 5 and 3 when quick.
    pub reps: Option<u32>,
    /// Only these operations; all when empty.
    pub ops: Vec<Op>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ArenaContenderId>,
    /// Whether missing hugepages may be added to the machine's pool while they are measured; see
    /// [`hugepages`](crate::hugepages). Otherwise rows that lack them are skipped.
    pub borrow_hugepages: bool,
}

/// The result of a run.
pub type ArenaReport = Report<ArenaSuite>;
/// The error that ended a run early.
pub type ArenaBenchError = BenchError<ArenaMeasureError>;

/// Runs the benchmark that `options` select.
///
/// The full run makes up to 2 GiB resident at a time, a quick one 512 MiB; less if less is
/// available.
///
/// # Errors
/// [`ArenaBenchError`] when a contender fails at an operation that should succeed on this machine.
/// Rows that the machine cannot measure are no error: see [`Report::skipped`].
pub fn run(
    options: &ArenaOptions,
    progress: &mut dyn Progress<ArenaRow>,
) -> Result<ArenaReport, ArenaBenchError> {
    crate::suite::run(options, progress)
}

/// The error of one measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaMeasureError {
    /// The system did not provide a mapping.
    #[error("the system could not map or populate memory: {0}")]
    System(#[from] rustix::io::Errno),
    /// The library returned an error.
    #[error("{0}")]
    Library(String),
    /// `bumpalo` got no memory for its chunk.
    #[error("cannot allocate a chunk of {capacity} bytes from the system's allocator")]
    NoChunk {
        /// Bytes requested.
        capacity: usize,
    },
    /// The arena exceeds the address space.
    #[error("{ops} allocations of {size} bytes exceed the address space")]
    TooLarge {
        /// Bytes of an allocation.
        size: usize,
        /// Number of allocations.
        ops: u64,
    },
    /// Allocations failed although the arena had space for all.
    #[error("only {served} of {ops} allocations succeeded in an arena with space for all")]
    Failed {
        /// Calls that succeeded.
        served: u64,
        /// Calls made.
        ops: u64,
    },
    /// Allocations succeeded although the arena was full.
    #[error("{served} of {ops} allocations succeeded in a full arena")]
    Served {
        /// Calls that succeeded.
        served: u64,
        /// Calls made.
        ops: u64,
    },
    /// The log file of the published arena's model cannot be opened.
    #[error("cannot open /dev/null: {0}")]
    Sink(String),
    /// The threads of the loop failed.
    #[error(transparent)]
    Team(#[from] crate::TeamError),
    /// The contender does not implement the operation.
    #[error("the contender does not support this operation")]
    Unsupported,
}

names! {
    /// The operations by name.
    pub enum Op ("operation", UnknownOpError) {
        /// An allocation that succeeds.
        Bump = "bump",
        /// An allocation that fails because the arena is full.
        BumpFull = "bump-full",
        /// Mapping memory without making it resident.
        Map = "map",
        /// Mapping memory and making it resident.
        Populate = "populate",
        /// Returning the pages of resident memory.
        Discard = "discard",
    }
}

names! {
    /// The contenders by name.
    pub enum ArenaContenderId ("contender", UnknownArenaContenderError) {
        /// The library under test, with the row's number of threads.
        Kvmem = "kvmem",
        /// The library under test, which chooses its number of threads; the row reports it.
        KvmemAuto = "kvmem-auto",
        /// A model of the published arena that kvmem's descends from. Older records call it `seed`.
        #[serde(alias = "seed")]
        PublishedArena = "published-arena",
        /// A bump pointer behind a mutex.
        Mutex = "mutex",
        /// The crate `bumpalo`.
        Bumpalo = "bumpalo",
        /// One thread and `MAP_POPULATE`.
        MapPopulate = "map-populate",
        /// One thread that writes to each page.
        Touch = "touch",
    }
}

names! {
    /// Kinds of pages by name, and kinds of memory where they decide about the pages.
    pub enum Pages ("kind of pages", UnknownPagesError) {
        /// The machine's smallest pages; transparent hugepages are declined.
        Base = "base",
        /// Transparent hugepages.
        Thp = "thp",
        /// Hugepages of 2 MiB from the system's pool.
        Huge = "2m",
        /// Memory that another process can attach: a memory file, in transparent hugepages if they
        /// are available.
        Shared = "shared",
    }
}

impl Pages {
    /// The kinds for private memory.
    pub const PRIVATE: [Self; 3] = [Self::Base, Self::Thp, Self::Huge];
}
