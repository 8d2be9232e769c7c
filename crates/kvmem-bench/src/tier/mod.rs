//! The benchmark of the disk tier: values that leave memory for a file, and come back.
//!
//! 1. *Passes.* A pass stores a number of values under new keys, or fetches as many of those that
//!    were stored before, in random order. Contenders take turns pass by pass, and the medians
//!    count. Every contender was full before the first pass, so a store evicts what is oldest, and
//!    no pass writes to blocks that the file system has never written.
//! 2. *Contenders.* [`Kvmem`](TierContenderId::Kvmem) is the library's tier, with its index,
//!    journal, checksums and eviction. [`Plain`](TierContenderId::Plain) is the limit: the same
//!    number of bytes read and written by io_uring, with direct I/O and fixed buffers, as many
//!    transfers in flight, in one loop that does nothing else. [`Files`](TierContenderId::Files)
//!    is one file for each value with `read()` and `write()`, as engines do it;
//!    [`FilesDirect`](TierContenderId::FilesDirect) the same with direct I/O on 16 threads.
//!    Programs of other people's code take part as [`Beside`]: they are started once, are told by a
//!    line of JSON what to do, and time themselves. One of them is fio, the usual generator of
//!    I/O: `plain` is a model of it, and the comparison with fio shows whether the model holds.
//! 3. *Time* is wall time of the pass and processor time of the process, with all its threads. What
//!    `files` has written counts when it is on the device (`syncfs`), since the others write past
//!    the page cache; its files leave the page cache before they are read.
//! 4. *Bytes.* Every value begins with its number and is otherwise random. After a pass of fetches
//!    all of them are compared, outside of the time.
//! 5. *Index.* A tier with many values of a byte each shows the memory of the index for each value
//!    and the seconds until it is open again. A tier without a disk, which only counts blocks,
//!    shows the utilization of the file for a pair of objects, one for the KV cache and one for its
//!    index, at the moment when the next one has no room.
//!
//! A contender outside of this program talks as [`beside`](crate::beside) has it:
//!
//! | call | answer |
//! |---|---|
//! | `{"call":"open","dir":D,"bytes":B,"value_bytes":V,"depth":N}` | `{}` |
//! | `{"call":"store","first":F,"count":C}`: stores the values F to F + C − 1 | `{"seconds":S,"cpu_seconds":P}` |
//! | `{"call":"fetch","numbers":[…]}`: fetches these values, and compares the numbers in their first eight bytes | the same |

mod contenders;
mod goals;
mod halves;
mod index;
mod measure;
mod sections;
mod suite;

use std::path::PathBuf;

pub use self::contenders::PassTime;
pub use self::halves::{Halves, HalvesError};
pub use self::suite::{TierDetails, TierRow, TierSkipped, TierSuite};
pub use crate::beside::{Beside, BesideError, NoBesideError};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};
pub use crate::values::{ValueError, padded};

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct TierBenchOptions {
    /// Whether to use smaller files and fewer repetitions: a minute instead of many.
    pub quick: bool,
    /// The exact number of repetitions of each pass, instead of 9, or 3 when quick.
    pub reps: Option<u32>,
    /// A directory on the device to measure; the directory for temporary files unless set.
    pub dir: Option<PathBuf>,
    /// Only these of the contenders in this program; all when empty.
    pub contenders: Vec<TierContenderId>,
    /// Programs that take part.
    pub beside: Vec<Beside>,
    /// Bytes of the values; 64 KiB, 1 MiB and 3,274,752 when empty.
    pub value_bytes: Vec<u64>,
    /// Transfers in flight; 32 unless set.
    pub depth: Option<u32>,
    /// Bytes that each contender may store; 4 GiB, or 512 MiB when quick, unless set.
    pub bytes: Option<u64>,
}

/// The result of a run.
pub type TierReport = Report<TierSuite>;
/// The error that ended a run early.
pub type TierBenchError = BenchError<TierMeasureError>;

/// Runs the benchmark that `options` select. Its files take as many bytes as the contenders may
/// store, 16 GiB in a full run of the four in this program, and are removed at the end.
///
/// # Errors
/// [`TierBenchError`] when a contender fails, or returns other bytes than were stored.
pub fn run(
    options: &TierBenchOptions,
    progress: &mut dyn Progress<TierRow>,
) -> Result<TierReport, TierBenchError> {
    crate::suite::run(options, progress)
}

/// The error of one measurement.
#[derive(Debug, thiserror::Error)]
pub enum TierMeasureError {
    /// The system refused a file or a transfer.
    #[error("{call}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The tier failed.
    #[error(transparent)]
    Tier(#[from] kvmem_tier::TierError),
    /// A value was not stored.
    #[error(transparent)]
    Store(#[from] kvmem_tier::StoreError),
    /// Values could not be made, or other bytes came back than were stored.
    #[error(transparent)]
    Values(#[from] ValueError),
    /// A value that was stored is not found.
    #[error("value {number} is not found: {found}")]
    Lost {
        /// The number of the value.
        number: u64,
        /// What was found.
        found: String,
    },
    /// A program that takes part failed.
    #[error(transparent)]
    Beside(#[from] BesideError),
}

impl TierMeasureError {
    fn system(call: &'static str) -> impl FnOnce(std::io::Error) -> TierMeasureError {
        move |source| TierMeasureError::System { call, source }
    }
}

names! {
    /// What a pass does.
    pub enum TierTransfer ("transfer", UnknownTierTransferError) {
        /// Values are stored.
        Store = "store",
        /// Values are fetched.
        Fetch = "fetch",
    }
}

names! {
    /// The contenders in this program by name.
    pub enum TierContenderId ("contender", UnknownTierContenderError) {
        /// The library's tier.
        Kvmem = "kvmem",
        /// Reads and writes alone.
        Plain = "plain",
        /// A file for each value, one thread.
        Files = "files",
        /// A file for each value, direct I/O, 16 threads.
        FilesDirect = "files-direct",
    }
}
