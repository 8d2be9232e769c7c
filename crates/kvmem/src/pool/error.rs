//! *Errors*: reasons why building or changing a pool fails, or allocating a block from it.

use std::ops::Range;

use thiserror::Error;

use crate::arena::{ArenaError, SizeError, SizeFault};
use crate::offset::{AllocError, SpaceError};
use crate::register::RegisterError;
use crate::slab::ExtentSetupError;
use crate::sys::Errno;

/// An error of a pool: it could not be built or changed, or a request for a block failed.
///
/// A failed build leaves nothing behind: nothing is mapped, pinned, or running.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A request for a block, or for a change of a block, failed. The value holds the reason; the
    /// pool and the block are unchanged.
    #[error(transparent)]
    Allocate(#[from] AllocError),
    /// No ready range is long enough, and a thread is still provisioning the rest of the pool.
    #[error(
        "a request for {requested} bytes failed: {ready} of {capacity} bytes are ready, and the \
         rest is being provisioned; wait for it (`wait_ready`), or free blocks"
    )]
    NotReady {
        /// Bytes requested.
        requested: u64,
        /// Bytes that are ready, in use or free.
        ready: u64,
        /// The pool's capacity in bytes.
        capacity: u64,
    },
    /// A text is not a size.
    #[error("{}", invalid_size(.text, .fault))]
    Size {
        /// The text.
        text: Box<str>,
        /// The fault in the text.
        fault: Box<SizeFault>,
    },
    /// The requested size of the pool exceeds its maximum.
    #[error(
        "the pool cannot have {requested} bytes: it reserved addresses for at most {max}; \
         build it with a larger `max_size`"
    )]
    Limit {
        /// Bytes requested.
        requested: u64,
        /// The maximum in bytes.
        max: u64,
    },
    /// The boundary is shorter than a page, or makes more than about a million parts.
    #[error(
        "a boundary of {requested} bytes is too short for this pool: the minimum, in whole pages, \
         is {min} bytes; set a boundary of at least {min} bytes, or none"
    )]
    Boundary {
        /// Bytes requested.
        requested: u64,
        /// The minimum in bytes.
        min: u64,
    },
    /// The size cannot change while the pool is being provisioned.
    #[error(
        "the pool's size cannot change while the pool is being provisioned: wait for it \
         (`wait_ready`) and try again"
    )]
    Initializing,
    /// A range does not lie within the block or the pool.
    #[error(
        "the range {}..{} is not within the {len} bytes of the block or pool: pass a range that \
         starts at or before its end and ends at or before {len}",
        range.start, range.end
    )]
    OutOfBounds {
        /// The range.
        range: Range<u64>,
        /// Length of the block or pool in bytes.
        len: u64,
    },
    /// The pool's memory is private to this process.
    #[error(
        "the pool's memory is private to this process: build the pool with `Backing::Shared` to \
         let other processes attach it"
    )]
    Private,
    /// The pool was attached for reading only.
    #[error(
        "the pool was attached for reading only: attach it with `Access::ReadWrite`, through a \
         descriptor that allows writing"
    )]
    ReadOnly,
    /// The reference names a block of another pool.
    #[error(
        "the reference names a block of pool {of}, but this is pool {here}: attach pool {of} and \
         resolve the reference there"
    )]
    Foreign {
        /// The pool that the reference names.
        of: u64,
        /// The pool that was to resolve it.
        here: u64,
    },
    /// Mapping or populating the memory failed.
    #[error("the pool's memory: {0}")]
    Memory(Box<ArenaError>),
    /// Registering the memory failed, or there is no key.
    #[error("the pool's registration: {0}")]
    Register(Box<RegisterError>),
    /// The space of offsets could not be made, grown or shrunk.
    #[error("the pool's offsets: {0}")]
    Space(Box<SpaceError>),
    /// The cache of hot sizes could not be made.
    #[error("the pool's hot sizes: {0}")]
    HotSizes(Box<ExtentSetupError>),
    /// A background thread could not be started: one that provisions, or one that publishes
    /// metrics.
    #[error(
        "a background thread of the pool could not be started: {errno}; raise RLIMIT_NPROC or the \
         pids limit of the cgroup, or do without it: build in the foreground, publish by calls"
    )]
    NoThread {
        /// The error of the system call.
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

/// Returns the error of the parser of sizes, whose message this error shows.
fn invalid_size(text: &str, fault: &SizeFault) -> SizeError {
    SizeError { text: text.into(), fault: fault.clone() }
}
