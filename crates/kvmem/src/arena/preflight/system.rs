//! *System*: what only a system call tells; a value, so that tests can make up a machine.

use crate::sys::{self, Errno, Resource};

/// Answers of the kernel about this process. `None` is what could not be found out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct System {
    /// Bytes of a base page.
    pub page_bytes: u64,
    /// `RLIMIT_MEMLOCK`: bytes that may be locked or pinned.
    pub memlock: Option<Limit>,
    /// `RLIMIT_AS`: bytes of address space.
    pub address_space: Option<Limit>,
    /// `RLIMIT_DATA`: bytes of private, writable mappings.
    pub data: Option<Limit>,
    /// The file system at `/dev/shm`.
    pub shm: Option<Space>,
    /// Processors of the affinity mask.
    pub cpus: Option<u32>,
    /// Whether an io_uring may be made, or why not.
    pub io_uring: Option<Result<(), Errno>>,
}

/// A resource limit in bytes; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// What is enforced.
    pub soft: Option<u64>,
    /// How far the process may raise it by itself.
    pub hard: Option<u64>,
}

/// Size of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it, in bytes; 0 where the file system has no size of its own.
    pub total_bytes: u64,
    /// What is free for ordinary users, in bytes.
    pub free_bytes: u64,
}

impl System {
    /// Asks the kernel about this process. Needs no privilege and changes nothing.
    pub fn here() -> Self {
        let limit = |resource| {
            let (soft, hard) = sys::resource_limits(resource).ok()?;
            Some(Limit { soft, hard })
        };
        System {
            page_bytes: sys::page_size() as u64,
            memlock: limit(Resource::Locked),
            address_space: limit(Resource::AddressSpace),
            data: limit(Resource::Data),
            shm: sys::space_at(c"/dev/shm")
                .ok()
                .map(|(total_bytes, free_bytes)| Space { total_bytes, free_bytes }),
            cpus: sys::affinity().ok().and_then(|cores| u32::try_from(cores).ok()),
            io_uring: Some(sys::io_uring_allowed()),
        }
    }

    /// A system that says nothing: base pages of 4 KiB, all else unknown. For tests, which then set
    /// what they need.
    pub fn unknown() -> Self {
        System {
            page_bytes: 4096,
            memlock: None,
            address_space: None,
            data: None,
            shm: None,
            cpus: None,
            io_uring: None,
        }
    }
}
