//! *Process arena errors*: what can go wrong with the arena of a process, with the numbers and the
//! remedy.

use thiserror::Error;

use super::{ArenaError, BumpError, Errno, SettingError};

/// Why there is no arena of the process.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A setting cannot be understood.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The memory of the arena cannot be mapped.
    #[error(
        "an arena of {pool_bytes} bytes cannot be mapped: {source}; make KVMEM_ARENA_POOL_SIZE less, or set \
         KVMEM_DISABLE_ARENA=1"
    )]
    Map {
        /// Size asked for, in bytes.
        pool_bytes: usize,
        /// Why not.
        source: ArenaError,
    },
    /// The process has an arena already: its settings count from its first use on.
    #[error("the arena of the process is in use already: configure it before its first use")]
    InUse,
}

/// Why a request to the arena of a process was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProcessAllocError {
    /// The request makes no sense: [`BumpError::Zero`], [`BumpError::BadAlign`] or
    /// [`BumpError::Overflow`].
    #[error(transparent)]
    Refused(BumpError),
    /// The arena is off or has no room, and a mapping could not be had either.
    #[error(
        "{requested} bytes at alignment {align} cannot be mapped: {errno}; ask for less, free something, raise the limit on address \
         space (ulimit -v) or on the number of mappings (sysctl vm.max_map_count)"
    )]
    Map {
        /// Bytes asked for.
        requested: usize,
        /// The alignment asked for.
        align: usize,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Why an address was not freed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FreeError {
    /// Nothing that begins at this address is allocated here: it was freed before, lies inside of
    /// an allocation, or comes from elsewhere.
    #[error(
        "no allocation of this arena begins at {address:#x}: it was freed before, lies inside of one, or comes from elsewhere"
    )]
    Unknown {
        /// The address.
        address: usize,
    },
    /// As many allocations of the pool have been freed as there were: one of them was freed twice.
    #[error(
        "{address:#x} is in the pool, but all {allocations} allocations of the pool were freed before"
    )]
    AllFreed {
        /// The address.
        address: usize,
        /// Allocations that the pool has served.
        allocations: u64,
    },
    /// The kernel would not unmap it. It stays allocated.
    #[error(
        "{bytes} bytes at {address:#x} cannot be unmapped: {errno}; raise the limit on the number of mappings \
         (sysctl vm.max_map_count) and free it again"
    )]
    Unmap {
        /// The address.
        address: usize,
        /// Bytes mapped.
        bytes: usize,
        /// What the kernel said.
        errno: Errno,
    },
}
