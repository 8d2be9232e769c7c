//! *Errors*: why a pool could not be had or changed, or a block not be had from it.

use std::ops::Range;

use thiserror::Error;

use crate::arena::{ArenaError, SizeError, SizeFault};
use crate::offset::{AllocError, SpaceError};
use crate::register::RegisterError;
use crate::slab::ExtentSetupError;
use crate::sys::Errno;

/// Why a pool could not be built or changed, or a block not be had.
///
/// When building fails nothing is left behind: nothing is mapped, pinned, or running.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The request for a block, or for a change of one, cannot be met. The value says why; nothing
    /// was changed.
    #[error(transparent)]
    Allocate(#[from] AllocError),
    /// There is no room in what is ready, and more is being made ready.
    #[error(
        "{requested} bytes were asked for; {ready} of {capacity} bytes are ready and the rest is being worked on: wait for it \
         (`wait_ready`), or free something"
    )]
    NotReady {
        /// Bytes asked for.
        requested: u64,
        /// Bytes that are ready, used or free.
        ready: u64,
        /// Bytes that are to be.
        capacity: u64,
    },
    /// A text that is no size.
    #[error("{}", no_size(.text, .fault))]
    Size {
        /// The text.
        text: Box<str>,
        /// What is wrong with it.
        fault: Box<SizeFault>,
    },
    /// The pool cannot be as large as this.
    #[error(
        "{requested} bytes are more than the {most} bytes that this pool has addresses for: build it with a greater `max_size`"
    )]
    Limit {
        /// Bytes asked for.
        requested: u64,
        /// The most it can have.
        most: u64,
    },
    /// A boundary that leaves parts of less than a page, or more than about a million of them.
    #[error(
        "a boundary of {requested} bytes is too short for this pool, in whole pages: ask for {least} or more"
    )]
    Boundary {
        /// Bytes asked for.
        requested: u64,
        /// The least it can be.
        least: u64,
    },
    /// The pool is still being made ready.
    #[error(
        "the pool is still being made ready: wait for it (`wait_ready`) before its size is changed"
    )]
    Initializing,
    /// A range that is not within the block or pool it was asked of.
    #[error("{}..{} is not a range within {len} bytes", range.start, range.end)]
    OutOfBounds {
        /// The range.
        range: Range<u64>,
        /// Bytes that there are.
        len: u64,
    },
    /// The memory is this process's alone.
    #[error(
        "the pool's memory is private: build it with `Backing::Shared` to let other processes attach it"
    )]
    Private,
    /// The pool was attached to be read.
    #[error(
        "the pool was attached to be read: attach it with `Access::ReadWrite`, by a descriptor that allows it"
    )]
    ReadOnly,
    /// A reference to a block of another pool.
    #[error("the reference is to pool {of}, and this is pool {here}: attach that one")]
    Foreign {
        /// The pool it names.
        of: u64,
        /// The pool it was resolved in.
        here: u64,
    },
    /// The memory could not be had.
    #[error("the pool's memory: {0}")]
    Memory(Box<ArenaError>),
    /// The memory could not be registered, or there is no key.
    #[error("the pool's registration: {0}")]
    Register(Box<RegisterError>),
    /// The space of offsets could not be made, grown or shrunk.
    #[error("the pool's offsets: {0}")]
    Space(Box<SpaceError>),
    /// The cache of hot sizes could not be made.
    #[error("the pool's hot sizes: {0}")]
    HotSizes(Box<ExtentSetupError>),
    /// No thread could be started to work in the background.
    #[error(
        "no thread could be started: {errno}; raise RLIMIT_NPROC or the pids limit of the cgroup, or build in the foreground"
    )]
    NoThread {
        /// Why.
        errno: Errno,
    },
}

impl From<ArenaError> for PoolError {
    fn from(error: ArenaError) -> PoolError {
        PoolError::Memory(Box::new(error))
    }
}

impl From<RegisterError> for PoolError {
    fn from(error: RegisterError) -> PoolError {
        PoolError::Register(Box::new(error))
    }
}

impl From<SpaceError> for PoolError {
    fn from(error: SpaceError) -> PoolError {
        PoolError::Space(Box::new(error))
    }
}

impl From<ExtentSetupError> for PoolError {
    fn from(error: ExtentSetupError) -> PoolError {
        match error {
            ExtentSetupError::Space(error) => error.into(),
            error => PoolError::HotSizes(Box::new(error)),
        }
    }
}

/// The words of the one reader of sizes.
fn no_size(text: &str, fault: &SizeFault) -> SizeError {
    SizeError { text: text.into(), fault: fault.clone() }
}
