//! *Fail*: why a call did not do what it was asked for, before it is a number and a text.
//!
//! What fails often (no room, a stale allocation) is kept as the value it came as, and made a text
//! when somebody asks for it: a refusal costs nanoseconds.

use std::ffi::c_int;
use std::fmt;

use kvmem::arena::{ArenaError, BumpError, Limit};
use kvmem::offset::{AllocError, CheckError, RawError, SpaceError};
use kvmem::pool::PoolError;
use kvmem::pool::kv_cache::{KvCacheError, KvCacheSetupError};
use kvmem::register::{DevicesError, NotAvailable, RegisterError};
use kvmem::slab::{ExtentSetupError, SlabError, SlabSetupError};

use crate::status::*;

/// Why a handle is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHandle {
    /// It was once.
    Destroyed,
    /// It was destroyed but for what still uses it, or is just being changed by another thread.
    Closed,
    /// It never was.
    Never,
    /// It is of another kind.
    Other(&'static str),
}

/// Why a call failed. Small, and made without the heap but for what is rare.
#[derive(Clone, Debug)]
pub(crate) enum Fail {
    /// A pointer is NULL.
    Null(&'static str),
    Handle {
        wanted: &'static str,
        bits: u64,
        why: BadHandle,
    },
    Poisoned(&'static str),
    /// The object is that of the process that this one was forked from.
    Forked(&'static str),
    TooManyObjects(u64),
    Alloc(AllocError),
    Raw(RawError),
    Bump(BumpError),
    Slice(SlabError),
    /// A key that nothing is held under.
    NotFound,
    /// A lease that was broken.
    Superseded,
    /// What a function of the program answered that was to tell a lower tier to forget.
    NotForgotten(c_int),
    /// A list or text does not fit.
    TooSmall {
        needed: u64,
        given: u64,
    },
    /// All else.
    Said(kvmem_status, Box<str>),
}

impl Fail {
    pub(crate) fn said(status: kvmem_status, text: impl fmt::Display) -> Fail {
        Fail::Said(status, text.to_string().into())
    }

    pub(crate) fn invalid(text: impl fmt::Display) -> Fail {
        Fail::said(KVMEM_INVALID_ARGUMENT, text)
    }

    pub(crate) fn status(&self) -> kvmem_status {
        match self {
            Fail::Null(_) => KVMEM_NULL_ARGUMENT,
            Fail::Handle { .. } => KVMEM_BAD_HANDLE,
            Fail::Poisoned(_) => KVMEM_POISONED,
            Fail::Forked(_) => KVMEM_FORKED,
            Fail::TooManyObjects(_) => KVMEM_LIMIT,
            Fail::Alloc(error) => of_alloc(error),
            Fail::Raw(RawError::Foreign { .. }) => KVMEM_FOREIGN_ALLOCATION,
            Fail::Raw(RawError::Refused(error)) => of_alloc(error),
            Fail::Raw(_) => KVMEM_STALE_ALLOCATION,
            Fail::Bump(BumpError::Zero) | Fail::Slice(SlabError::ZeroSize) => KVMEM_ZERO_SIZE,
            Fail::Bump(BumpError::BadAlign { .. }) => KVMEM_BAD_ALIGN,
            Fail::Bump(BumpError::Full { .. }) => KVMEM_NO_ROOM,
            Fail::Slice(SlabError::NoMemory { .. }) => KVMEM_NO_MEMORY,
            Fail::Bump(_) | Fail::Slice(_) => KVMEM_TOO_LARGE,
            Fail::NotFound => KVMEM_NOT_FOUND,
            Fail::Superseded => KVMEM_SUPERSEDED,
            Fail::NotForgotten(_) => KVMEM_NOT_FORGOTTEN,
            Fail::TooSmall { .. } => KVMEM_BUFFER_TOO_SMALL,
            Fail::Said(status, _) => *status,
        }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fail::Null(what) => write!(f, "{what} is NULL"),
            Fail::Handle { wanted, bits, why } => match why {
                BadHandle::Destroyed => write!(f, "{bits:#x} names no {wanted} any more: it was destroyed"),
                BadHandle::Closed => {
                    write!(f, "this {wanted} ({bits:#x}) was destroyed, or another thread is changing it")
                }
                BadHandle::Never => write!(f, "{bits:#x} is no {wanted}, and never was"),
                BadHandle::Other(other) => write!(f, "{bits:#x} is a {other}, and a {wanted} is needed"),
            },
            Fail::Poisoned(what) => {
                write!(f, "an earlier call met a defect and left this {what} half done: destroy it")
            }
            Fail::Forked(what) => write!(
                f,
                "this {what} was made before the process was forked: its memory, keys and descriptors are the parent's; destroy the \
                 handle, and make a new one here"
            ),
            Fail::TooManyObjects(most) => {
                write!(f, "there are {most} objects of this kind, and no more handles: destroy some")
            }
            Fail::Alloc(error) => error.fmt(f),
            Fail::Raw(error) => error.fmt(f),
            Fail::Bump(error) => error.fmt(f),
            Fail::Slice(error) => error.fmt(f),
            Fail::NotFound => f.write_str("nothing is held under this key"),
            Fail::Superseded => f.write_str(
                "something was put, removed or cleared under the key since the lease was taken: abandon what was fetched, and use \
                 what the key has now",
            ),
            Fail::NotForgotten(answer) => {
                write!(
                    f,
                    "`forget` answered {answer}, so a lower tier may still have what was taken out, and it is not leased: call \
                     kvmem_kv_clear_with when that can forget again"
                )
            }
            Fail::TooSmall { needed, given } => {
                write!(f, "there is room for {given}, and {needed} are needed: give a larger buffer")
            }
            Fail::Said(_, text) => f.write_str(text),
        }
    }
}

#[inline]
pub(crate) fn of_alloc(error: &AllocError) -> kvmem_status {
    match error {
        AllocError::ZeroSize => KVMEM_ZERO_SIZE,
        AllocError::TooLarge { .. } | AllocError::AlignTooLarge { .. } => KVMEM_TOO_LARGE,
        AllocError::BadAlign { .. } => KVMEM_BAD_ALIGN,
        AllocError::Blocked { .. } => KVMEM_BLOCKED,
        AllocError::OutOfBounds { .. } => KVMEM_OUT_OF_BOUNDS,
        AllocError::TooManyRanges { .. } => KVMEM_BOOKS_FULL,
        AllocError::NoRanges { .. } => KVMEM_INVALID_ARGUMENT,
        _ => KVMEM_NO_ROOM,
    }
}

fn of_arena(error: &ArenaError) -> kvmem_status {
    match error {
        ArenaError::ZeroSize => KVMEM_ZERO_SIZE,
        ArenaError::TooLarge { .. } => KVMEM_TOO_LARGE,
        ArenaError::NoPages { .. } | ArenaError::NoHeadroom { .. } => KVMEM_NO_MEMORY,
        ArenaError::Refused { limit: Some(Limit::Machine(_) | Limit::Pool { .. }), .. } => {
            KVMEM_NO_MEMORY
        }
        ArenaError::Refused { limit: Some(_), .. } => KVMEM_LIMIT,
        ArenaError::Populate { limit: Some(_), .. } => KVMEM_NO_MEMORY,
        ArenaError::Cancelled { .. } => KVMEM_CANCELLED,
        ArenaError::OverBudget { .. } => KVMEM_TIMED_OUT,
        ArenaError::OutOfBounds { .. } => KVMEM_OUT_OF_BOUNDS,
        ArenaError::Registered { .. } => KVMEM_IN_USE,
        ArenaError::Foreign { .. } | ArenaError::Pooled { .. } => KVMEM_UNSUPPORTED,
        ArenaError::Shared | ArenaError::Unsealed { .. } => KVMEM_WRONG_BACKING,
        ArenaError::EmptyLadder
        | ArenaError::NoNodes { .. }
        | ArenaError::NoSuchNode { .. }
        | ArenaError::Misaligned { .. }
        | ArenaError::NotMemory
        | ArenaError::WrongSize { .. } => KVMEM_INVALID_ARGUMENT,
        _ => KVMEM_SYSTEM,
    }
}

fn of_register(error: &RegisterError) -> kvmem_status {
    match error {
        RegisterError::NoRegistrars | RegisterError::SameName { .. } => KVMEM_INVALID_ARGUMENT,
        RegisterError::Empty => KVMEM_ZERO_SIZE,
        RegisterError::Limited { .. } => KVMEM_LIMIT,
        RegisterError::Refused { error, .. } if error.refusal.exceeded.is_some() => KVMEM_LIMIT,
        RegisterError::Refused { .. } => KVMEM_REFUSED,
        RegisterError::DeregisterFailed { .. } => KVMEM_KEPT,
        RegisterError::Populate(error) => of_arena(error),
        RegisterError::Cancelled { .. } => KVMEM_CANCELLED,
        RegisterError::OverBudget { .. } => KVMEM_TIMED_OUT,
        RegisterError::NoSuchDevice { .. } => KVMEM_NO_SUCH_DEVICE,
        RegisterError::OutOfBounds { .. } => KVMEM_OUT_OF_BOUNDS,
        RegisterError::Straddles { .. } => KVMEM_STRADDLES,
        RegisterError::Ended { .. } => KVMEM_ENDED,
        _ => KVMEM_SYSTEM,
    }
}

fn of_space(error: &SpaceError) -> kvmem_status {
    match error {
        SpaceError::InUse { .. } => KVMEM_IN_USE,
        SpaceError::TooManyRanges { .. } => KVMEM_BOOKS_FULL,
        _ => KVMEM_INVALID_ARGUMENT,
    }
}

fn of_pool(error: &PoolError) -> kvmem_status {
    match error {
        PoolError::Refused(error) => of_alloc(error),
        PoolError::NotReady { .. } => KVMEM_NOT_READY,
        PoolError::Limit { .. } => KVMEM_TOO_LARGE,
        PoolError::Initializing => KVMEM_IN_USE,
        PoolError::OutOfBounds { .. } => KVMEM_OUT_OF_BOUNDS,
        PoolError::Private => KVMEM_WRONG_BACKING,
        PoolError::ReadOnly => KVMEM_READ_ONLY,
        PoolError::Foreign { .. } => KVMEM_FOREIGN_ALLOCATION,
        PoolError::Memory(error) => of_arena(error),
        PoolError::Register(error) => of_register(error),
        PoolError::Space(error) => of_space(error),
        PoolError::NoThread { .. } => KVMEM_SYSTEM,
        _ => KVMEM_INVALID_ARGUMENT,
    }
}

impl From<AllocError> for Fail {
    fn from(error: AllocError) -> Fail {
        Fail::Alloc(error)
    }
}

impl From<RawError> for Fail {
    fn from(error: RawError) -> Fail {
        Fail::Raw(error)
    }
}

impl From<BumpError> for Fail {
    fn from(error: BumpError) -> Fail {
        Fail::Bump(error)
    }
}

impl From<SlabError> for Fail {
    fn from(error: SlabError) -> Fail {
        Fail::Slice(error)
    }
}

impl From<PoolError> for Fail {
    fn from(error: PoolError) -> Fail {
        match error {
            PoolError::Refused(error) => Fail::Alloc(error),
            error => Fail::said(of_pool(&error), error),
        }
    }
}

impl From<KvCacheError> for Fail {
    fn from(error: KvCacheError) -> Fail {
        match error {
            KvCacheError::Empty => Fail::said(KVMEM_ZERO_SIZE, error),
            KvCacheError::TooLarge { .. } => Fail::said(KVMEM_TOO_LARGE, error),
            KvCacheError::NothingToEvict { .. } => Fail::said(KVMEM_NOTHING_TO_EVICT, error),
            KvCacheError::Forked => Fail::said(KVMEM_FORKED, error),
            KvCacheError::WrongLength { .. } => Fail::said(KVMEM_INVALID_ARGUMENT, error),
            KvCacheError::Pool(error) => error.into(),
            error => Fail::said(KVMEM_NO_ROOM, error),
        }
    }
}

/// What becomes a text at once.
macro_rules! said {
    ($($error:ty: $status:expr;)*) => {
        $(impl From<$error> for Fail {
            fn from(error: $error) -> Fail {
                let status: fn(&$error) -> kvmem_status = $status;
                Fail::said(status(&error), error)
            }
        })*
    };
}

said! {
    ArenaError: of_arena;
    RegisterError: of_register;
    SpaceError: of_space;
    ExtentSetupError: |error| match error { ExtentSetupError::Space(error) => of_space(error), _ => KVMEM_INVALID_ARGUMENT };
    SlabSetupError: |_| KVMEM_INVALID_ARGUMENT;
    KvCacheSetupError: |_| KVMEM_INVALID_ARGUMENT;
    DevicesError: |_| KVMEM_INVALID_ARGUMENT;
    NotAvailable: |_| KVMEM_NOT_AVAILABLE;
    CheckError: |_| KVMEM_CHECK_FAILED;
}
