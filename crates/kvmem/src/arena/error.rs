//! *Errors*: what can go wrong with memory, with the numbers in it and the way out.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::numa::Nodes;
use super::{Fallback, PageSize};
use crate::sys::{Call, Errno};

/// A limit that stood in the way, with its value in bytes unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// `RLIMIT_AS`, `ulimit -v`.
    AddressSpace(u64),
    /// The longest range of addresses that this process has free. Machine and kernel set it: 128
    /// TiB in all is usual.
    Addresses(u64),
    /// `RLIMIT_DATA`, `ulimit -d`.
    Data(u64),
    /// `RLIMIT_MEMLOCK`, `ulimit -l`; it counts for mappings after `mlockall(MCL_FUTURE)`.
    Locked(u64),
    /// `RLIMIT_FSIZE`, `ulimit -f`.
    FileSize(u64),
    /// What the machine has left to give: `MemAvailable` and free swap, less what other calls and
    /// processes have reserved.
    Machine(u64),
    /// A memory cgroup: the directory, its limit, and what is left of it.
    Cgroup {
        /// Directory of the group.
        group: String,
        /// Its limit in bytes.
        limit: u64,
        /// What was left of it in bytes, less what other calls and processes have reserved.
        left: u64,
    },
    /// The pool of hugepages of this size: free and promised to nobody, in pages.
    Pool {
        /// Size of the pages.
        page: PageSize,
        /// Pages free.
        free: u64,
    },
    /// `vm.overcommit_memory` is 2 and the commit limit is this.
    Commit(u64),
    /// `vm.max_map_count`: mappings of a process.
    Maps(u64),
}

impl Limit {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Limit::AddressSpace(_) => "raise RLIMIT_AS (ulimit -v unlimited)".to_owned(),
            Limit::Addresses(free) => {
                format!("ask for less than {free} bytes: no setting raises this")
            }
            Limit::Data(_) => "raise RLIMIT_DATA (ulimit -d unlimited)".to_owned(),
            Limit::Locked(_) => "raise RLIMIT_MEMLOCK (ulimit -l unlimited)".to_owned(),
            Limit::FileSize(_) => "raise RLIMIT_FSIZE (ulimit -f unlimited)".to_owned(),
            Limit::Machine(_) => "ask for less, or free memory of the machine".to_owned(),
            Limit::Cgroup { group, .. } => {
                format!(
                    "raise the memory limit of the container or of the cgroup {group}, or ask for less"
                )
            }
            Limit::Pool { page, .. } => format!(
                "reserve more: echo N > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages; or allow smaller pages",
                page.bytes() >> 10
            ),
            Limit::Commit(_) => {
                "set vm.overcommit_memory to 0 or 1, raise vm.overcommit_ratio, or ask for less"
                    .to_owned()
            }
            Limit::Maps(_) => "raise vm.max_map_count".to_owned(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AddressSpace(bytes) => write!(f, "RLIMIT_AS is {bytes} bytes"),
            Limit::Addresses(bytes) => {
                write!(
                    f,
                    "the longest range of addresses that is free in this process has {bytes} bytes"
                )
            }
            Limit::Data(bytes) => write!(f, "RLIMIT_DATA is {bytes} bytes"),
            Limit::Locked(bytes) => write!(f, "RLIMIT_MEMLOCK is {bytes} bytes"),
            Limit::FileSize(bytes) => write!(f, "RLIMIT_FSIZE is {bytes} bytes"),
            Limit::Machine(bytes) => write!(f, "the machine has {bytes} bytes available"),
            Limit::Cgroup { group, limit, left } => {
                write!(f, "cgroup {group} has {left} bytes left of {limit}")
            }
            Limit::Pool { page, free } => write!(f, "the pool of {page} pages has {free} left"),
            Limit::Commit(bytes) => write!(f, "the commit limit is {bytes} bytes"),
            Limit::Maps(count) => write!(f, "vm.max_map_count is {count}"),
        }
    }
}

/// "; the limit: the remedy", or nothing.
struct Tail<'a>(&'a Option<Limit>);

impl fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |limit| write!(f, "; {limit}: {}", limit.remedy()))
    }
}

/// Why a region could not be had, or something not be done with it.
///
/// When mapping fails nothing is left behind. When something fails on a region that stands, it
/// stands as it was, except that some of its pages may have become resident.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No bytes were asked for.
    #[error("a region of 0 bytes was asked for: ask for at least 1")]
    ZeroSize,
    /// More bytes than there are addresses.
    #[error("{requested} bytes are more than the {most} a region can have: ask for less")]
    TooLarge {
        /// Bytes asked for.
        requested: usize,
        /// The most a region can have with this alignment.
        most: usize,
    },
    /// A ladder without rungs.
    #[error("the page ladder is empty: name at least one kind of page")]
    EmptyLadder,
    /// No rung of the ladder, or the only one of a strict ladder, could take all of the rest.
    #[error("{} bytes could not be had in {page} pages: {reason}{}", range.len(), Tail(limit))]
    NoPages {
        /// What is missing, as offsets into the region.
        range: Range<usize>,
        /// The rung that was tried last.
        page: PageSize,
        /// Why it could not take more.
        reason: Fallback,
        /// The limit that was hit, if it is known.
        limit: Option<Limit>,
    },
    /// A system call was refused while mapping.
    #[error("{call} of {bytes} bytes was refused: {errno}{}", Tail(limit))]
    Refused {
        /// The call.
        call: Call,
        /// Bytes that it was about.
        bytes: usize,
        /// Why.
        errno: Errno,
        /// The limit that was hit, if it is known.
        limit: Option<Limit>,
    },
    /// Pages could not be made resident.
    #[error(
        "offsets {}..{} could not be made resident ({call}): {errno}; {remedy}{}", range.start, range.end, Tail(limit)
    )]
    Populate {
        /// The chunk that failed, as offsets into the region.
        range: Range<usize>,
        /// The call that failed.
        call: Call,
        /// Why.
        errno: Errno,
        /// The limit that was hit, if it is known.
        limit: Option<Limit>,
        /// What this error number means here, and what to do.
        remedy: &'static str,
    },
    /// Making these pages resident would have got the process killed, so it was not tried.
    #[error("{need} bytes are to be made resident, but {limit}: {}", limit.remedy())]
    NoHeadroom {
        /// Bytes still needed, with what the kernel needs beside them.
        need: u64,
        /// What does not have them.
        limit: Limit,
    },
    /// [`CancelToken::cancel`](super::CancelToken::cancel) was called.
    #[error("cancelled with {done} of {total} bytes resident")]
    Cancelled {
        /// Bytes that had been populated.
        done: u64,
        /// Bytes that were to be.
        total: u64,
    },
    /// The time budget was used up.
    #[error(
        "the time budget of {budget:?} was used up with {done} of {total} bytes resident: allow more time"
    )]
    OverBudget {
        /// The budget.
        budget: Duration,
        /// Bytes that had been populated.
        done: u64,
        /// Bytes that were to be.
        total: u64,
    },
    /// A NUMA policy without nodes.
    #[error("the NUMA policy names no node: name at least one of the nodes {online}")]
    NoNodes {
        /// Nodes with memory.
        online: Nodes,
    },
    /// A node that the machine does not have.
    #[error("NUMA node {node} has no memory here: choose from the nodes {online}")]
    NoSuchNode {
        /// The node asked for.
        node: u32,
        /// Nodes with memory.
        online: Nodes,
    },
    /// The NUMA policy was refused.
    #[error(
        "the NUMA policy for the nodes {nodes} was refused ({call}): {errno}; in a container, allow {call} in its \
         seccomp profile (CAP_SYS_NICE), or use no policy"
    )]
    PolicyRefused {
        /// Nodes asked for.
        nodes: Nodes,
        /// The call that was refused.
        call: Call,
        /// Why.
        errno: Errno,
    },
    /// Pages are not where the policy put them.
    #[error("offsets {}..{} lie on node {found}, wanted {wanted}: is that node out of memory?", range.start, range.end)]
    Misplaced {
        /// The range, as offsets into the region.
        range: Range<usize>,
        /// Nodes found.
        found: Nodes,
        /// Nodes wanted.
        wanted: Nodes,
    },
    /// A range that is not within the region.
    #[error("{start}..{end} is not a range within this region of {len} bytes")]
    OutOfBounds {
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// A range that does not begin and end on a page boundary.
    #[error("{start}..{end} does not begin and end on a multiple of {page} bytes in memory")]
    Misaligned {
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// The page size in bytes.
        page: usize,
    },
    /// Pages of a pool cannot be given back one by one.
    #[error(
        "offsets {}..{} are {page} pages of a pool: were they given back, a later touch could find the pool empty and \
         kill the process; drop the whole region, or map what is to be discarded with THP or base pages",
        range.start, range.end
    )]
    Pooled {
        /// The range, as offsets into the region.
        range: Range<usize>,
        /// What it is made of.
        page: PageSize,
    },
    /// Pages that a device was given.
    #[error(
        "offsets {}..{} have a part in what is registered with a device ({}..{} of the mapping): it would go on with the old \
         pages; deregister first", range.start, range.end, held.start, held.end
    )]
    Registered {
        /// The range, as offsets into the region.
        range: Range<usize>,
        /// What is registered, as offsets into the mapping.
        held: Range<usize>,
    },
    /// This is not possible with memory of another owner.
    #[error(
        "the memory was made elsewhere and only lent to this region: {what} is up to its owner"
    )]
    Foreign {
        /// What was asked for.
        what: &'static str,
    },
    /// The memory is shared, so nobody has it alone.
    #[error(
        "the memory is shared: a plain slice of it would promise that nobody else writes to it"
    )]
    Shared,
    /// A file that is not memory.
    #[error(
        "the descriptor is no memory file: attach one that `Region::fd` of another process gave"
    )]
    NotMemory,
    /// A file whose size may still change: a touch beyond its end would kill.
    #[error(
        "the memory file lacks seals (it has {seals:#x}, needed are {wanted:#x}): its size could change under us; seal it \
         with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"
    )]
    Unsealed {
        /// Seals it has.
        seals: i32,
        /// Seals needed.
        wanted: i32,
    },
    /// A file of another size than expected.
    #[error("the memory file has {found} bytes, expected were {expected}")]
    WrongSize {
        /// Its size in bytes.
        found: u64,
        /// The size that was said.
        expected: u64,
    },
}
