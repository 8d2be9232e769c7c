//! The benchmark of the register layer: the time until every device has its keys, and the time to
//! give them back.
//!
//! 1. *Cells.* A cell is a region of one size and kind of pages, registered with 1, 4 or 8
//!    contexts, resident beforehand or not. The contexts are io_uring rings, which pin pages by the
//!    same kernel path as RDMA drivers, or NICs of two simulated machines. These reproduce
//!    published figures: on one, parallel registration of resident memory gains a factor of four;
//!    on the other it loses a factor of 2.7.
//! 2. *Contenders.* [`Sequential`](RegisterContenderId::Sequential) and
//!    [`Parallel`](RegisterContenderId::Parallel) are the two published strategies: each context
//!    gets the whole region in the largest chunks it accepts, one context after another or on a
//!    thread for each, and nothing populates it. The benchmark implements them with rings that are
//!    used as engines use them (`plain_ring.rs`) and with as few calls as possible. The other
//!    contenders are the library with its own rings: its fixed policies, and
//!    [`Auto`](RegisterContenderId::Auto), which chooses one itself.
//! 3. *Time* is wall time, or simulated time on a simulated machine. It has three parts:
//!    populating, where the contender does it; registering, with all planning and calibration;
//!    giving back. The total is their sum. It excludes mapping the region, opening the contexts and
//!    unmapping, and populating a region that is resident beforehand.
//! 4. *Fresh memory.* A region that is not resident is mapped anew for each run. A resident one is
//!    mapped and populated once for all cells of its size and pages, and registered repeatedly,
//!    which does not change its pages.
//! 5. *Noise.* A virtual machine returns free memory to its host every two seconds, a part at a
//!    time, and the next first touch of it costs up to thirty times as much as the second. Before
//!    each run that takes fresh memory, the same amount is therefore made resident and freed. Base
//!    pages take longer than two seconds; they come from free memory that the host cannot reclaim,
//!    because resident pages keep it fragmented (`ballast.rs`). Hugepages of the pool are never
//!    returned. The contenders take turns, in an order that is shuffled for each round. A merely
//!    rotated order would be as regular as the host, and the same contender would pay each time.
//!    The first round does not count (a quick run uses only one contender for it); of the other
//!    rounds, five or more, the medians count. Short cells get more rounds. Simulated time has no
//!    noise.
//! 6. *Missing rows.* Hugepages of 2 MiB are borrowed as in the benchmark of the
//!    [arena](crate::arena) layer. Rows that lack pages, memory, rings or locked memory are absent,
//!    and the report says why. Large regions that are not resident are registered with the largest
//!    number of contexts only: with fewer, a run takes as long and says less.

mod ballast;
mod cell;
mod fixture;
mod goals;
mod measure;
mod memory;
mod plain_ring;
mod plan;
mod planning;
mod sections;
mod strategies;
mod suite;

pub use self::suite::{RegisterDetails, RegisterRow, RegisterSkipped, RegisterSuite};
pub use crate::arena::Pages;
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct RegisterOptions {
    /// Whether to use one size and fewer contexts and rounds: half a minute instead of minutes.
    pub quick: bool,
    /// The exact number of rounds that count. Unless set, at least 5, or 3 when quick, and more
    /// where they take little time.
    pub reps: Option<u32>,
    /// Only these backends; all when empty.
    pub backends: Vec<Backend>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<RegisterContenderId>,
    /// Regions of these sizes on io_uring; 1 GiB and 8 GiB, or 1 GiB when quick, when empty.
    pub region_bytes: Vec<u64>,
    /// Numbers of rings; 1, 4 and 8, or 8 when quick, when empty.
    pub contexts: Vec<u32>,
    /// Whether missing hugepages may be added to the machine's pool while they are measured; see
    /// [`hugepages`](crate::hugepages). Otherwise rows that lack them are skipped.
    pub borrow_hugepages: bool,
}

/// The result of a run.
pub type RegisterReport = Report<RegisterSuite>;
/// The error that ended a run early.
pub type RegisterBenchError = BenchError<RegisterMeasureError>;

/// Runs the benchmark that `options` select.
///
/// On io_uring the full run makes up to 8 GiB resident at a time, a quick one 1 GiB; less if less
/// is available.
///
/// # Errors
/// [`RegisterBenchError`] when a contender fails at an operation that should succeed on this
/// machine. Rows that the machine cannot measure are no error: see [`Report::skipped`].
pub fn run(
    options: &RegisterOptions,
    progress: &mut dyn Progress<RegisterRow>,
) -> Result<RegisterReport, RegisterBenchError> {
    crate::suite::run(options, progress)
}

/// The error of one measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterMeasureError {
    /// A limit of this machine, which says nothing about a contender's speed.
    #[error("{0}")]
    Limited(String),
    /// The system did not provide a mapping.
    #[error("the system could not map or populate memory: {0}")]
    System(#[from] rustix::io::Errno),
    /// A thread panicked or could not be started.
    #[error(transparent)]
    Team(#[from] crate::TeamError),
    /// The library returned an error.
    #[error("{0}")]
    Library(String),
    /// A call of a registrar failed.
    #[error("{0}")]
    Registrar(String),
}

names! {
    /// The kinds of registrars by name.
    pub enum Backend ("backend", UnknownBackendError) {
        /// Rings of io_uring with fixed buffers.
        IoUring = "io_uring",
        /// The simulated machine on which parallel registration of resident memory wins.
        ParallelWins = "simulated-parallel-wins",
        /// The simulated machine on which parallel registration loses.
        ParallelLoses = "simulated-parallel-loses",
    }
}

impl Backend {
    /// Returns whether time and memory are simulated.
    #[must_use]
    pub fn is_simulated(self) -> bool {
        self != Self::IoUring
    }
}

names! {
    /// The contenders by name.
    pub enum RegisterContenderId ("policy", UnknownRegisterContenderError) {
        /// As published: one context after another, each registers the whole unpopulated region.
        Sequential = "sequential",
        /// As published: one thread per context, each registers the whole unpopulated region.
        Parallel = "parallel",
        /// The library with its sequential policy.
        KvmemSequential = "kvmem-sequential",
        /// The library with its parallel policy, all registrars at once.
        KvmemParallel = "kvmem-parallel",
        /// The library, which chooses the policy itself.
        Auto = "auto",
    }
}
