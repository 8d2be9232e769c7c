//! *System*: facts that only a system call reports, as a value, so that tests can describe any
//! machine.

use super::collapse_trial::collapse_trial;
use crate::sys::{self, Errno, Resource};

/// The kernel's answers about this process. `None` means that the kernel gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct System {
    /// The size of a base page in bytes.
    pub page_bytes: u64,
    /// `RLIMIT_MEMLOCK`: bytes that may be locked or pinned.
    pub memlock: Option<Rlimit>,
    /// `RLIMIT_AS`: bytes of address space.
    pub address_space: Option<Rlimit>,
    /// `RLIMIT_DATA`: bytes of private, writable mappings.
    pub data: Option<Rlimit>,
    /// The file system at `/dev/shm`.
    pub shm: Option<FileSystemSpace>,
    /// The number of processors in the affinity mask.
    pub cpus: Option<u32>,
    /// Whether the process may make an io_uring, or the error.
    pub io_uring: Option<Result<(), Errno>>,
    /// Whether the kernel collapses shared memory into a transparent hugepage, or the error.
    pub collapse: Option<Result<(), Errno>>,
}

/// A resource limit in bytes; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rlimit {
    /// The enforced limit.
    pub soft: Option<u64>,
    /// The value up to which the process may raise the soft limit.
    pub hard: Option<u64>,
}

/// The size of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// The total bytes; 0 if the file system has no size of its own.
    pub total_bytes: u64,
    /// The bytes free for ordinary users.
    pub free_bytes: u64,
}

impl System {
    /// Asks the kernel about this process. Needs no privilege and changes nothing: the shared
    /// memory that is collapsed for a trial, 2 MiB, is unmapped before this returns.
    #[must_use]
    pub fn here() -> Self {
        let limit = |resource| {
            let (soft, hard) = sys::resource_limits(resource).ok()?;
            Some(Rlimit { soft, hard })
        };
        System {
            page_bytes: sys::page_size() as u64,
            memlock: limit(Resource::Locked),
            address_space: limit(Resource::AddressSpace),
            data: limit(Resource::Data),
            shm: sys::space_at(c"/dev/shm")
                .ok()
                .map(|(total_bytes, free_bytes)| FileSystemSpace { total_bytes, free_bytes }),
            cpus: sys::affinity().ok().and_then(|cores| u32::try_from(cores).ok()),
            io_uring: Some(sys::io_uring_allowed()),
            collapse: collapse_trial(),
        }
    }

    /// Returns a system that knows nothing except base pages of 4 KiB. For tests, which then set
    /// the fields that they need.
    #[must_use]
    pub fn unknown() -> Self {
        System {
            page_bytes: 4096,
            memlock: None,
            address_space: None,
            data: None,
            shm: None,
            cpus: None,
            io_uring: None,
            collapse: None,
        }
    }
}
