//! *Process arena errors*: typed reasons for failures of the process-wide arena, with numbers and
//! remedies.

use thiserror::Error;

use super::settings::SettingError;
use crate::arena::{ArenaError, BumpError, Errno};

/// The reason why the arena of the process could not be made.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A setting has a wrong value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The memory of the arena cannot be mapped.
    #[error(
        "cannot map an arena of {pool_bytes} bytes: {source}; reduce KVMEM_ARENA_POOL_SIZE, or set \
         KVMEM_DISABLE_ARENA=1"
    )]
    Map {
        /// The requested size in bytes.
        pool_bytes: usize,
        /// The reason.
        source: ArenaError,
    },
    /// The process has an arena already; its settings are fixed at its first use.
    #[error("the arena of the process is in use already: configure it before its first use")]
    InUse,
}

/// The reason why a request to a process arena failed. The arena is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProcessAllocError {
    /// The request itself is wrong: [`BumpError::Zero`], [`BumpError::BadAlign`] or
    /// [`BumpError::Overflow`].
    #[error(transparent)]
    Invalid(BumpError),
    /// The pool is off or full, and the kernel could not map separate pages.
    #[error(
        "cannot map {requested} bytes at alignment {align}: {errno}; request less, free something, \
         raise the limit on address space (ulimit -v) or on the number of mappings (sysctl \
         vm.max_map_count)"
    )]
    Map {
        /// The requested size in bytes.
        requested: usize,
        /// The requested alignment.
        align: usize,
        /// The kernel's error number.
        errno: Errno,
    },
}

/// The reason why an address was not freed. The arena is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FreeError {
    /// No allocation of this arena begins at the address: it was freed before, lies inside an
    /// allocation, or belongs to another allocator.
    #[error(
        "cannot free {address:#x}: no allocation of this arena begins there; it was freed before, \
         lies inside an allocation, or belongs to another allocator"
    )]
    Unknown {
        /// The address.
        address: usize,
    },
    /// All allocations of the pool have been freed already: one of them was freed twice.
    #[error(
        "cannot free {address:#x}: all {allocations} allocations of the pool were freed before; \
         one was freed twice"
    )]
    AllFreed {
        /// The address.
        address: usize,
        /// The number of allocations that the pool has served.
        allocations: u64,
    },
    /// The kernel could not unmap the allocation, which stays allocated.
    #[error(
        "cannot unmap {bytes} bytes at {address:#x}: {errno}; raise the limit on the number of \
         mappings (sysctl vm.max_map_count) and free it again"
    )]
    Unmap {
        /// The address.
        address: usize,
        /// The length of the mapping in bytes.
        bytes: usize,
        /// The kernel's error number.
        errno: Errno,
    },
}
