//! *Error*: why a call failed, before the failure becomes a status and a text.
//!
//! Frequent failures (out of space, a stale allocation) are kept as the value that the core
//! returned. The text is formatted only when the program asks for it, so a failed call costs
//! nanoseconds.

use std::{fmt, io};

use kvmem::arena::{ArenaError, BumpError, Limit};
use kvmem::cache::{KvCacheError, KvCacheSetupError};
use kvmem::offset::{AllocError, CheckError, RawError, SpaceError};
use kvmem::pool::PoolError;
use kvmem::register::{DevicesError, NotAvailable, RegisterError};
use kvmem::slab::{ExtentSetupError, SlabError, SlabSetupError};
use kvmem_tier::device::FixedBuffersError;
use kvmem_tier::{KeyringError, StoreError, TierError};

use crate::status::*;

/// Why a handle names no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHandle {
    /// The object was destroyed.
    Destroyed,
    /// The object was destroyed and is kept for its remaining users, or another thread is changing
    /// it.
    Closed,
    /// No object ever had this handle.
    Unknown,
    /// The handle names an object of this other type.
    WrongType(&'static str),
}

/// Why a call failed. Small; only rare failures allocate from the heap.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// This argument is NULL.
    Null(&'static str),
    /// A handle names no object of the wanted type.
    Handle {
        wanted: &'static str,
        bits: u64,
        why: BadHandle,
    },
    /// An earlier call on an object of this type panicked.
    Poisoned(&'static str),
    /// The object belongs to the process that this one was forked from.
    Forked(&'static str),
    /// All handles of this type are in use; this many exist.
    TooManyObjects(u64),
    Alloc(AllocError),
    Raw(RawError),
    Bump(BumpError),
    Slab(SlabError),
    /// No value is stored under the key.
    NotFound,
    /// A list or text does not fit.
    BufferTooSmall {
        needed: u64,
        given: u64,
    },
    /// Every other failure: its status and its text.
    Message(kvmem_status, Box<str>),
}

impl CallError {
    pub(crate) fn new(status: kvmem_status, text: impl fmt::Display) -> CallError {
        CallError::Message(status, text.to_string().into())
    }

    pub(crate) fn invalid(text: impl fmt::Display) -> CallError {
        CallError::new(KVMEM_ERR_INVALID_ARGUMENT, text)
    }

    pub(crate) fn status(&self) -> kvmem_status {
        match self {
            CallError::Null(_) => KVMEM_ERR_NULL_ARGUMENT,
            CallError::Handle { .. } => KVMEM_ERR_BAD_HANDLE,
            CallError::Poisoned(_) => KVMEM_ERR_POISONED,
            CallError::Forked(_) => KVMEM_ERR_FORKED,
            CallError::TooManyObjects(_) => KVMEM_ERR_LIMIT,
            CallError::Alloc(error) => alloc_status(error),
            CallError::Raw(RawError::Foreign { .. }) => KVMEM_ERR_FOREIGN_ALLOCATION,
            CallError::Raw(RawError::Failed(error)) => alloc_status(error),
            CallError::Raw(_) => KVMEM_ERR_STALE_ALLOCATION,
            CallError::Bump(BumpError::Zero) | CallError::Slab(SlabError::ZeroSize) => {
                KVMEM_ERR_ZERO_SIZE
            }
            CallError::Bump(BumpError::BadAlign { .. }) => KVMEM_ERR_BAD_ALIGN,
            CallError::Bump(BumpError::Full { .. }) => KVMEM_ERR_OUT_OF_SPACE,
            CallError::Slab(SlabError::NoMemory { .. }) => KVMEM_ERR_NO_MEMORY,
            CallError::Bump(_) | CallError::Slab(_) => KVMEM_ERR_TOO_LARGE,
            CallError::NotFound => KVMEM_ERR_NOT_FOUND,
            CallError::BufferTooSmall { .. } => KVMEM_ERR_BUFFER_TOO_SMALL,
            CallError::Message(status, _) => *status,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Null(what) => write!(f, "{what} is NULL"),
            CallError::Handle { wanted, bits, why } => match why {
                BadHandle::Destroyed => {
                    write!(f, "handle {bits:#x} is not valid: this {wanted} was destroyed")
                }
                BadHandle::Closed => write!(
                    f,
                    "handle {bits:#x} is not valid: this {wanted} was destroyed, or another \
                     thread is changing it"
                ),
                BadHandle::Unknown => {
                    write!(f, "handle {bits:#x} is not valid: no {wanted} ever had it")
                }
                BadHandle::WrongType(other) => write!(
                    f,
                    "handle {bits:#x} is not valid here: it is a {other}, and the call needs a \
                     {wanted}"
                ),
            },
            CallError::Poisoned(what) => write!(
                f,
                "this {what} cannot be used: an earlier call panicked while changing it; destroy it"
            ),
            CallError::Forked(what) => write!(
                f,
                "this {what} was made before the process was forked: its memory, keys and \
                 descriptors belong to the parent; destroy the handle and make a new object in \
                 this process"
            ),
            CallError::TooManyObjects(max) => write!(
                f,
                "the object cannot be made: all {max} handles of its type are in use; destroy \
                 some objects"
            ),
            CallError::Alloc(error) => error.fmt(f),
            CallError::Raw(error) => error.fmt(f),
            CallError::Bump(error) => error.fmt(f),
            CallError::Slab(error) => error.fmt(f),
            CallError::NotFound => f.write_str("no value is stored under this key"),
            CallError::BufferTooSmall { needed, given } => write!(
                f,
                "the result does not fit: it needs {needed}, and the buffer holds {given}; give a \
                 larger buffer"
            ),
            CallError::Message(_, text) => f.write_str(text),
        }
    }
}

#[inline]
pub(crate) fn alloc_status(error: &AllocError) -> kvmem_status {
    match error {
        AllocError::ZeroSize => KVMEM_ERR_ZERO_SIZE,
        AllocError::TooLarge { .. } | AllocError::AlignTooLarge { .. } => KVMEM_ERR_TOO_LARGE,
        AllocError::BadAlign { .. } => KVMEM_ERR_BAD_ALIGN,
        AllocError::CannotExtend { .. } => KVMEM_ERR_CANNOT_EXTEND,
        AllocError::OutOfBounds { .. } => KVMEM_ERR_OUT_OF_BOUNDS,
        AllocError::TooManyRanges { .. } => KVMEM_ERR_TOO_MANY_RANGES,
        AllocError::NoRanges { .. } => KVMEM_ERR_INVALID_ARGUMENT,
        _ => KVMEM_ERR_OUT_OF_SPACE,
    }
}

pub(crate) fn arena_status(error: &ArenaError) -> kvmem_status {
    match error {
        ArenaError::ZeroSize => KVMEM_ERR_ZERO_SIZE,
        ArenaError::TooLarge { .. } => KVMEM_ERR_TOO_LARGE,
        ArenaError::NoPages { .. } | ArenaError::NoHeadroom { .. } => KVMEM_ERR_NO_MEMORY,
        ArenaError::CallFailed { limit: Some(Limit::Machine(_) | Limit::Pool { .. }), .. } => {
            KVMEM_ERR_NO_MEMORY
        }
        ArenaError::CallFailed { limit: Some(_), .. } => KVMEM_ERR_LIMIT,
        ArenaError::Populate { limit: Some(_), .. } => KVMEM_ERR_NO_MEMORY,
        ArenaError::Cancelled { .. } => KVMEM_ERR_CANCELLED,
        ArenaError::OverBudget { .. } => KVMEM_ERR_TIMED_OUT,
        ArenaError::OutOfBounds { .. } => KVMEM_ERR_OUT_OF_BOUNDS,
        ArenaError::Registered { .. } => KVMEM_ERR_IN_USE,
        ArenaError::Foreign { .. } | ArenaError::Pooled { .. } => KVMEM_ERR_UNSUPPORTED,
        ArenaError::Shared | ArenaError::Unsealed { .. } => KVMEM_ERR_WRONG_BACKING,
        ArenaError::EmptyLadder
        | ArenaError::NoNodes { .. }
        | ArenaError::NoSuchNode { .. }
        | ArenaError::Misaligned { .. }
        | ArenaError::NotMemory
        | ArenaError::WrongSize { .. } => KVMEM_ERR_INVALID_ARGUMENT,
        _ => KVMEM_ERR_SYSTEM,
    }
}

fn register_status(error: &RegisterError) -> kvmem_status {
    match error {
        RegisterError::NoRegistrars | RegisterError::SameName { .. } => KVMEM_ERR_INVALID_ARGUMENT,
        RegisterError::Empty => KVMEM_ERR_ZERO_SIZE,
        RegisterError::Limited { .. } => KVMEM_ERR_LIMIT,
        RegisterError::ChunkFailed { error, .. } if error.cause.exceeded.is_some() => {
            KVMEM_ERR_LIMIT
        }
        RegisterError::ChunkFailed { .. } => KVMEM_ERR_REGISTER_FAILED,
        RegisterError::DeregisterFailed { .. } => KVMEM_ERR_DEREGISTER_FAILED,
        RegisterError::Populate(error) => arena_status(error),
        RegisterError::Cancelled { .. } => KVMEM_ERR_CANCELLED,
        RegisterError::OverBudget { .. } => KVMEM_ERR_TIMED_OUT,
        RegisterError::NoSuchDevice { .. } => KVMEM_ERR_NO_SUCH_DEVICE,
        RegisterError::OutOfBounds { .. } => KVMEM_ERR_OUT_OF_BOUNDS,
        RegisterError::Straddles { .. } => KVMEM_ERR_STRADDLES,
        RegisterError::Deregistered { .. } => KVMEM_ERR_DEREGISTERED,
        _ => KVMEM_ERR_SYSTEM,
    }
}

fn space_status(error: &SpaceError) -> kvmem_status {
    match error {
        SpaceError::InUse { .. } => KVMEM_ERR_IN_USE,
        SpaceError::TooManyRanges { .. } => KVMEM_ERR_TOO_MANY_RANGES,
        _ => KVMEM_ERR_INVALID_ARGUMENT,
    }
}

fn pool_status(error: &PoolError) -> kvmem_status {
    match error {
        PoolError::Allocate(error) => alloc_status(error),
        PoolError::NotReady { .. } => KVMEM_ERR_NOT_READY,
        PoolError::Limit { .. } => KVMEM_ERR_TOO_LARGE,
        PoolError::Initializing => KVMEM_ERR_IN_USE,
        PoolError::OutOfBounds { .. } => KVMEM_ERR_OUT_OF_BOUNDS,
        PoolError::Private => KVMEM_ERR_WRONG_BACKING,
        PoolError::ReadOnly => KVMEM_ERR_READ_ONLY,
        PoolError::Foreign { .. } => KVMEM_ERR_FOREIGN_ALLOCATION,
        PoolError::Memory(error) => arena_status(error),
        PoolError::Register(error) => register_status(error),
        PoolError::Space(error) => space_status(error),
        PoolError::NoThread { .. } => KVMEM_ERR_SYSTEM,
        _ => KVMEM_ERR_INVALID_ARGUMENT,
    }
}

fn tier_status(error: &TierError) -> kvmem_status {
    match error {
        TierError::TooSmall { .. } | TierError::CannotShrink { .. } => KVMEM_ERR_INVALID_ARGUMENT,
        TierError::Device { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
            KVMEM_ERR_IN_USE
        }
        TierError::Superblocks { .. } | TierError::CutOff { .. } | TierError::Checkpoint { .. } => {
            KVMEM_ERR_BAD_TIER
        }
        TierError::Owned { .. } => KVMEM_ERR_IN_USE,
        TierError::ReadOnly { .. } | TierError::TakenOver { .. } => KVMEM_ERR_READ_ONLY,
        _ => KVMEM_ERR_SYSTEM,
    }
}

impl From<AllocError> for CallError {
    fn from(error: AllocError) -> CallError {
        CallError::Alloc(error)
    }
}

impl From<RawError> for CallError {
    fn from(error: RawError) -> CallError {
        CallError::Raw(error)
    }
}

impl From<BumpError> for CallError {
    fn from(error: BumpError) -> CallError {
        CallError::Bump(error)
    }
}

impl From<SlabError> for CallError {
    fn from(error: SlabError) -> CallError {
        CallError::Slab(error)
    }
}

impl From<PoolError> for CallError {
    fn from(error: PoolError) -> CallError {
        match error {
            PoolError::Allocate(error) => CallError::Alloc(error),
            error => CallError::new(pool_status(&error), error),
        }
    }
}

impl From<KvCacheError> for CallError {
    fn from(error: KvCacheError) -> CallError {
        match error {
            KvCacheError::Empty => CallError::new(KVMEM_ERR_ZERO_SIZE, error),
            KvCacheError::TooLarge { .. } => CallError::new(KVMEM_ERR_TOO_LARGE, error),
            KvCacheError::NothingToEvict { .. } => {
                CallError::new(KVMEM_ERR_NOTHING_TO_EVICT, error)
            }
            KvCacheError::Forked => CallError::new(KVMEM_ERR_FORKED, error),
            KvCacheError::WrongLength { .. } => CallError::new(KVMEM_ERR_INVALID_ARGUMENT, error),
            KvCacheError::Pool(error) => error.into(),
            error => CallError::new(KVMEM_ERR_OUT_OF_SPACE, error),
        }
    }
}

/// Errors whose text is formatted at once, because they are rare.
macro_rules! formatted_errors {
    ($($error:ty: $status:expr;)*) => {
        $(impl From<$error> for CallError {
            fn from(error: $error) -> CallError {
                let status: fn(&$error) -> kvmem_status = $status;
                CallError::new(status(&error), error)
            }
        })*
    };
}

formatted_errors! {
    ArenaError: arena_status;
    RegisterError: register_status;
    SpaceError: space_status;
    ExtentSetupError: |error| match error {
        ExtentSetupError::Space(error) => space_status(error),
        _ => KVMEM_ERR_INVALID_ARGUMENT,
    };
    SlabSetupError: |_| KVMEM_ERR_INVALID_ARGUMENT;
    KvCacheSetupError: |_| KVMEM_ERR_INVALID_ARGUMENT;
    DevicesError: |_| KVMEM_ERR_INVALID_ARGUMENT;
    NotAvailable: |_| KVMEM_ERR_NOT_AVAILABLE;
    CheckError: |_| KVMEM_ERR_CHECK_FAILED;
    TierError: tier_status;
    KeyringError: |error| match error {
        KeyringError::Read { .. } => KVMEM_ERR_SYSTEM,
        KeyringError::Lock { .. } => KVMEM_ERR_LIMIT,
        _ => KVMEM_ERR_INVALID_ARGUMENT,
    };
    FixedBuffersError: |error| match error {
        FixedBuffersError::Pool(error) => pool_status(error),
        FixedBuffersError::Region(error) => register_status(error),
        _ => KVMEM_ERR_NOT_AVAILABLE,
    };
    StoreError: |error| match error {
        StoreError::TooLarge { .. } => KVMEM_ERR_TOO_LARGE,
        StoreError::NoRoom { .. } => KVMEM_ERR_NOTHING_TO_EVICT,
        StoreError::TooManyNamespaces { .. } => KVMEM_ERR_LIMIT,
        StoreError::Tier(error) => tier_status(error),
        _ => KVMEM_ERR_SYSTEM,
    };
}
