//! The benchmark of the arena layer: allocation by bumping, and pages made resident.
//!
//! 1. *Operations.* [`Op::Bump`] allocates 64 B and 4 KiB on 1, 2 and 8 threads; [`Op::BumpFull`]
//!    is the same call where there is no room left. [`Op::Populate`] maps memory and makes it
//!    resident, [`Op::Discard`] gives it back, [`Op::Map`] maps 1 TiB and leaves it untouched.
//! 2. *Contenders.* kvmem's bump arena meets a mutex, the crate `bumpalo` and a model of the arena
//!    it came from ([`bump`]). Its populated regions meet one thread with `MAP_POPULATE` and one
//!    thread that writes to each page.
//! 3. *Time.* A bump allocation computes and never waits, so its time is the processor time of its
//!    thread, the mean of the threads. Populating is what its callers wait for, so its time is that
//!    on the wall, from before the mapping until the memory is there; unmapping is not part of it.
//! 4. *Noise.* Machines drift, and a virtual machine's first touch of memory that was given back to
//!    the host costs many times as much as the second. The tasks of a group therefore take turns,
//!    each repetition starts with another one, medians count, and the memory is populated once
//!    before the clock runs.
//! 5. *What is not there.* Rows need their pages. Hugepages of 2 MiB that the system lacks are
//!    [borrowed](crate::hugepages) where the options allow it, and given back however the run ends.
//!    Where rows cannot be had they are absent, and the report says why.

pub mod bump;
mod goals;
mod html;
pub(crate) mod mapping;
mod measure;
mod plan;
pub(crate) mod region;
mod report;
mod suite;
pub(crate) mod system;
mod table;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::report::{Report, Row, Skipped};
use crate::names::names;
use crate::progress::Progress;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Less memory and fewer repetitions: some seconds instead of some minutes.
    pub quick: bool,
    /// Repetitions of each measurement, of which the median counts; 15 and 5 (bump, pages), or 5
    /// and 3 when quick, unless given.
    pub reps: Option<u32>,
    /// Only these operations; all when empty.
    pub ops: Vec<Op>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ContenderId>,
    /// Whether hugepages that rows lack may be added to the machine's pool while they are
    /// measured; see [`hugepages`](crate::hugepages). Without it such rows are left out.
    pub borrow_hugepages: bool,
}

/// Runs what `options` ask for.
///
/// The full run makes up to 2 GiB resident at a time, a quick one 512 MiB; less where less is
/// available.
///
/// # Errors
/// [`BenchError`] when a contender fails at what it should be able to do here. Rows that this
/// machine cannot have are no error: see [`Report::skipped`].
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    suite::run(options, progress)
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} with {contender}: {error}")]
pub struct BenchError {
    /// The operation that was measured.
    pub op: Op,
    /// The contender that ran.
    pub contender: ContenderId,
    /// What happened.
    pub error: MeasureError,
}

/// Why something could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The system refused a mapping.
    #[error("the system refused memory: {0}")]
    System(#[from] rustix::io::Errno),
    /// The library refused.
    #[error("{0}")]
    Library(String),
    /// The allocator behind `bumpalo` refused its chunk.
    #[error("no chunk of {capacity} bytes: the system's allocator has none")]
    NoChunk {
        /// Bytes asked for.
        capacity: usize,
    },
    /// The arena would not fit the address space.
    #[error("{ops} allocations of {size} bytes do not fit the address space")]
    TooLarge {
        /// Bytes of an allocation.
        size: usize,
        /// How many.
        ops: u64,
    },
    /// An arena with room refused.
    #[error("only {served} of {ops} allocations succeeded in an arena with room for all")]
    Refused {
        /// Calls that succeeded.
        served: u64,
        /// Calls made.
        ops: u64,
    },
    /// A full arena served.
    #[error("{served} of {ops} allocations succeeded in a full arena")]
    Served {
        /// Calls that succeeded.
        served: u64,
        /// Calls made.
        ops: u64,
    },
    /// The sink of the seed's log cannot be opened.
    #[error("/dev/null cannot be opened: {0}")]
    Sink(String),
    /// A thread of the loop panicked.
    #[error("a thread panicked")]
    Panicked,
    /// A thread could not be started.
    #[error(transparent)]
    NoThread(#[from] crate::NoThread),
    /// The operation is none of the contender's.
    #[error("it does not take part in that")]
    NotAble,
}

/// The operations by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// An allocation that succeeds.
    Bump,
    /// An allocation that fails because the arena is full.
    BumpFull,
    /// Mapping memory and making it resident.
    Populate,
    /// Giving the pages of resident memory back.
    Discard,
    /// Mapping memory without making it resident.
    Map,
}

impl Op {
    /// All operations, in the order in which they run.
    pub const ALL: [Self; 5] =
        [Self::Bump, Self::BumpFull, Self::Map, Self::Populate, Self::Discard];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bump => "bump",
            Self::BumpFull => "bump-full",
            Self::Populate => "populate",
            Self::Discard => "discard",
            Self::Map => "map",
        }
    }
}

names!(Op, UnknownOp, "operation", "A name that no operation bears.");

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContenderId {
    /// The library under test, with as many threads as the row says.
    Kvmem,
    /// The library under test, which chooses its threads; the row says how many it took.
    KvmemAuto,
    /// A model of the arena that kvmem's came from.
    Seed,
    /// A bump pointer behind a mutex.
    Mutex,
    /// The crate `bumpalo`.
    Bumpalo,
    /// One thread and `MAP_POPULATE`.
    MapPopulate,
    /// One thread that writes to each page.
    Touch,
}

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 7] = [
        Self::Kvmem,
        Self::KvmemAuto,
        Self::Seed,
        Self::Mutex,
        Self::Bumpalo,
        Self::MapPopulate,
        Self::Touch,
    ];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvmem => "kvmem",
            Self::KvmemAuto => "kvmem-auto",
            Self::Seed => "seed",
            Self::Mutex => "mutex",
            Self::Bumpalo => "bumpalo",
            Self::MapPopulate => "map-populate",
            Self::Touch => "touch",
        }
    }
}

names!(ContenderId, UnknownContender, "contender", "A name that no contender bears.");

/// Kinds of pages by name, and of memory where that decides about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pages {
    /// The smallest that the machine has; transparent hugepages are declined.
    #[serde(rename = "base")]
    Base,
    /// Transparent hugepages.
    #[serde(rename = "thp")]
    Thp,
    /// Hugepages of 2 MiB from the system's pool.
    #[serde(rename = "2m")]
    Huge,
    /// Memory that another process can attach: a memory file, in transparent hugepages as far as
    /// they can be had.
    #[serde(rename = "shared")]
    Shared,
}

impl Pages {
    /// All kinds, in the order in which reports list them.
    pub const ALL: [Self; 4] = [Self::Base, Self::Thp, Self::Huge, Self::Shared];

    /// Those of memory of the process's own.
    pub const PRIVATE: [Self; 3] = [Self::Base, Self::Thp, Self::Huge];

    /// The name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Thp => "thp",
            Self::Huge => "2m",
            Self::Shared => "shared",
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
