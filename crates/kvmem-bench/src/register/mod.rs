//! The benchmark of the register layer: how long until every device has its keys, and until they
//! are given back.
//!
//! 1. *Cells.* A cell is a region of one size and kind of pages, registered with 1, 4 or 8
//!    contexts, resident beforehand or not. The contexts are rings of io_uring, which pin pages by
//!    the same path of the kernel as RDMA drivers do; and the two simulated machines, which behave
//!    as those of which the figures were published: on one, parallel registration of resident
//!    memory gains a factor of four, on the other it loses one of 2.7.
//! 2. *Contenders.* [`Sequential`](ContenderId::Sequential) and [`Parallel`](ContenderId::Parallel)
//!    are the two ways that were published: each context gets the whole region in the largest
//!    chunks it takes, one context after another or on a thread for each, and nobody populates.
//!    They are written here, with rings that are used as engines use them (`plain_ring.rs`), and
//!    make as few calls as can be made. The others are the library's, with its rings: its fixed
//!    policies, and [`Auto`](ContenderId::Auto), which has to find out by itself.
//! 3. *Time* is that of the host, on the wall or simulated, of three parts: populating, where the
//!    contender does it; registering, with all planning and trials; giving back. The total is their
//!    sum. Mapping the region, opening the contexts and unmapping are not part of it; nor is
//!    populating a region that is to be resident beforehand.
//! 4. *Fresh memory.* A region that is not resident is mapped anew for each run. A resident one is
//!    mapped and populated once for all cells of its size and pages, and registered again and
//!    again: that changes nothing about its pages.
//! 5. *Noise.* A virtual machine gives free memory back to its host every two seconds, a part at a
//!    time, and the next first touch of it costs up to thirty times as much as the second. So
//!    before each run that takes fresh memory as much is made resident and let go of again; base
//!    pages, which take longer than that, come from free memory that the host cannot take back,
//!    since it lies between pages that are held (`ballast.rs`); hugepages of the pool stay. The
//!    contenders take turns, in an order that is shuffled for each round: with one that is merely
//!    rotated each contender comes round as regularly as the host does, and the same one pays each
//!    time. The first round does not count (when quick it is one contender's run), and of the
//!    others, five or more, medians do. Cells that are done soon get more rounds. Simulated time
//!    has no noise.
//! 6. *What is not there.* Hugepages of 2 MiB are borrowed as in the benchmark of the
//!    [arena](crate::arena) layer. Rows that cannot be had, for want of pages, memory, rings or
//!    locked memory, are absent, and the report says why. Large regions that are not resident are
//!    registered with the most contexts only: with fewer, a run takes as long and says less.

mod ballast;
mod bed;
mod goals;
mod html;
mod measure;
mod plain_ring;
mod plan;
mod published;
mod report;
mod suite;
mod table;

use serde::{Deserialize, Serialize};

pub use self::report::{Report, Row, Skipped};
pub use crate::arena::Pages;
use crate::names::names;
use crate::progress::Progress;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// One size, fewer contexts and rounds: half a minute instead of some minutes.
    pub quick: bool,
    /// Rounds that count, exactly; otherwise at least 5, or 3 when quick, and more where they take
    /// little time.
    pub reps: Option<u32>,
    /// Only these backends; all when empty.
    pub backends: Vec<Backend>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<ContenderId>,
    /// Regions of these sizes on io_uring; 1 GiB and 8 GiB, or 1 GiB when quick, when empty.
    pub region_bytes: Vec<u64>,
    /// So many rings; 1, 4 and 8, or 8 when quick, when empty.
    pub contexts: Vec<u32>,
    /// Whether hugepages that rows lack may be added to the machine's pool while they are
    /// measured; see [`hugepages`](crate::hugepages). Without it such rows are left out.
    pub borrow_hugepages: bool,
}

/// Runs what `options` ask for.
///
/// On io_uring the full run makes up to 8 GiB resident at a time, a quick one 1 GiB; less where
/// less is available.
///
/// # Errors
/// [`BenchError`] when a contender fails at what it should be able to do here. Rows that this
/// machine cannot have are no error: see [`Report::skipped`].
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, BenchError> {
    suite::run(options, progress)
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cell}, {contender}: {error}")]
pub struct BenchError {
    /// What was measured, in words.
    pub cell: String,
    /// The contender that ran.
    pub contender: ContenderId,
    /// What happened.
    pub error: MeasureError,
}

/// Why something could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// A limit of this machine, which says nothing about anyone's speed.
    #[error("{0}")]
    Limited(String),
    /// The system refused a mapping.
    #[error("the system refused memory: {0}")]
    System(#[from] rustix::io::Errno),
    /// A thread could not be started.
    #[error(transparent)]
    NoThread(#[from] crate::NoThread),
    /// The library refused.
    #[error("{0}")]
    Library(String),
    /// A registrar refused a chunk or a key.
    #[error("{0}")]
    Refused(String),
}

/// What registers, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Backend {
    /// Rings of io_uring with fixed buffers.
    #[serde(rename = "io_uring")]
    IoUring,
    /// The simulated machine on which parallel registration of resident memory wins.
    #[serde(rename = "simulated-parallel-wins")]
    ParallelWins,
    /// The simulated machine on which it loses.
    #[serde(rename = "simulated-parallel-loses")]
    ParallelLoses,
}

impl Backend {
    /// All backends, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::IoUring, Self::ParallelWins, Self::ParallelLoses];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::ParallelWins => "simulated-parallel-wins",
            Self::ParallelLoses => "simulated-parallel-loses",
        }
    }

    /// Whether time and memory are simulated.
    pub fn is_simulated(self) -> bool {
        self != Self::IoUring
    }
}

names!(Backend, UnknownBackend, "backend", "A name that no backend bears.");

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContenderId {
    /// As published: one context after another, the whole region each, nobody populates.
    Sequential,
    /// As published: a thread for each context, the whole region each, nobody populates.
    Parallel,
    /// The library with the policy of that name.
    KvmemSequential,
    /// The library with the policy of that name, all registrars at once.
    KvmemParallel,
    /// The library, which finds out by itself.
    Auto,
}

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 5] =
        [Self::Sequential, Self::Parallel, Self::KvmemSequential, Self::KvmemParallel, Self::Auto];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Parallel => "parallel",
            Self::KvmemSequential => "kvmem-sequential",
            Self::KvmemParallel => "kvmem-parallel",
            Self::Auto => "auto",
        }
    }
}

names!(ContenderId, UnknownContender, "policy", "A name that no policy bears.");
