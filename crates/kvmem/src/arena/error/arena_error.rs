//! *Errors*: typed reasons for failures, with their numbers and remedies.

use std::ops::Range;
use std::time::Duration;

use thiserror::Error;

use super::limit::{Limit, LimitAndRemedy};
use crate::arena::{Fallback, Nodes, PageSize};
use crate::sys::{Call, Errno};

/// The reason why mapping a region, or an operation on one, failed.
///
/// A failed mapping leaves nothing behind. A failed operation leaves the region as it was, except
/// that some of its pages may have become resident.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The requested size is 0.
    #[error("cannot map a region of 0 bytes: request at least 1")]
    ZeroSize,
    /// The requested size exceeds the address space.
    #[error("cannot map {requested} bytes: a region has at most {max}; request less")]
    TooLarge {
        /// The requested size in bytes.
        requested: usize,
        /// The largest size of a region with this alignment, in bytes.
        max: usize,
    },
    /// The ladder has no rungs.
    #[error("cannot map with an empty page ladder: name at least one kind of page")]
    EmptyLadder,
    /// The last rung of the ladder, or the only one of a strict ladder, could not take the rest.
    #[error("cannot map {} bytes in {page} pages: {reason}{}", range.len(), LimitAndRemedy(limit))]
    NoPages {
        /// The part without pages, as offsets into the region.
        range: Range<usize>,
        /// The rung that was tried last.
        page: PageSize,
        /// The reason why it could not take more.
        reason: Fallback,
        /// The limit that was reached, if it is known.
        limit: Option<Limit>,
    },
    /// A system call failed.
    #[error("{call} of {bytes} bytes failed: {errno}{}", LimitAndRemedy(limit))]
    CallFailed {
        /// The call.
        call: Call,
        /// The number of bytes that it was called for.
        bytes: usize,
        /// The error number.
        errno: Errno,
        /// The limit that was reached, if it is known.
        limit: Option<Limit>,
    },
    /// Pages could not be made resident.
    #[error(
        "cannot make offsets {}..{} resident: {call} failed: {errno}; {remedy}{}",
        range.start, range.end, LimitAndRemedy(limit)
    )]
    Populate {
        /// The chunk that failed, as offsets into the region.
        range: Range<usize>,
        /// The call that failed.
        call: Call,
        /// The error number.
        errno: Errno,
        /// The limit that was reached, if it is known.
        limit: Option<Limit>,
        /// The meaning of this error number here, and what to do.
        remedy: &'static str,
    },
    /// Making these pages resident would have got the process killed, so kvmem did not try.
    #[error("cannot make {need} bytes resident: {limit}; {}", limit.remedy())]
    NoHeadroom {
        /// Bytes still needed, including page tables and a margin.
        need: u64,
        /// The limit that is too low.
        limit: Limit,
    },
    /// [`CancelToken::cancel`](crate::arena::CancelToken::cancel) was called while populating.
    #[error("populating was cancelled with {done} of {total} bytes resident")]
    Cancelled {
        /// Bytes populated before.
        done: u64,
        /// Bytes to populate.
        total: u64,
    },
    /// Populating took longer than its time budget.
    #[error(
        "populating exceeded the time budget of {budget:?} with {done} of {total} bytes resident: \
         allow more time"
    )]
    OverBudget {
        /// The budget.
        budget: Duration,
        /// Bytes populated before.
        done: u64,
        /// Bytes to populate.
        total: u64,
    },
    /// The NUMA policy names no nodes.
    #[error("the NUMA policy names no node: name at least one of the nodes {online}")]
    NoNodes {
        /// Nodes with memory.
        online: Nodes,
    },
    /// The machine has no such node, or the node has no memory.
    #[error("NUMA node {node} has no memory: choose from the nodes {online}")]
    NoSuchNode {
        /// The requested node.
        node: u32,
        /// Nodes with memory.
        online: Nodes,
    },
    /// The kernel did not accept the NUMA policy.
    #[error(
        "cannot set the NUMA policy for the nodes {nodes}: {call} failed: {errno}; in a container, \
         allow {call} in its seccomp profile (CAP_SYS_NICE), or use no policy"
    )]
    PolicyFailed {
        /// The requested nodes.
        nodes: Nodes,
        /// The call that failed.
        call: Call,
        /// The error number.
        errno: Errno,
    },
    /// Pages are on other nodes than the policy says.
    #[error("offsets {}..{} are on node {found} instead of {wanted}: check whether that node has \
        enough free memory", range.start, range.end)]
    Misplaced {
        /// The range, as offsets into the region.
        range: Range<usize>,
        /// The nodes of the pages.
        found: Nodes,
        /// The nodes of the policy.
        wanted: Nodes,
    },
    /// The range is not within the region.
    #[error("the range {start}..{end} does not lie within this region of {len} bytes")]
    OutOfBounds {
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The range does not begin and end on page boundaries.
    #[error(
        "the addresses of the range {start}..{end} do not begin and end at multiples of {page} \
         bytes"
    )]
    Misaligned {
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// The page size in bytes.
        page: usize,
    },
    /// Pages of a hugetlb pool cannot be returned one by one.
    #[error(
        "cannot discard offsets {}..{}: they are {page} pages of a hugetlb pool; a later touch \
         could find the pool empty and kill the process; drop the whole region, or map memory to \
         be discarded with THP or base pages",
        range.start, range.end
    )]
    Pooled {
        /// The range, as offsets into the region.
        range: Range<usize>,
        /// Its kind of page.
        page: PageSize,
    },
    /// The range is registered with a device.
    #[error(
        "cannot discard offsets {}..{}: the range {}..{} of the mapping is registered with a \
         device, which would keep \
         using the old pages; deregister it first", range.start, range.end, held.start, held.end
    )]
    Registered {
        /// The range, as offsets into the region.
        range: Range<usize>,
        /// The registered range, as offsets into the mapping.
        held: Range<usize>,
    },
    /// The operation is not possible with memory of another owner.
    #[error(
        "{what} is not possible: the memory belongs to another owner, which lent it to this \
         region; use the owner's own functions"
    )]
    Foreign {
        /// The operation.
        what: &'static str,
    },
    /// The memory is shared, so no caller has exclusive access.
    #[error(
        "cannot make a plain slice of shared memory: other processes can write to it; use \
         `Region::slice`"
    )]
    Shared,
    /// The descriptor is not a memory file.
    #[error(
        "the descriptor is not a memory file: attach one that `Region::fd` of another process \
         returned"
    )]
    NotMemory,
    /// The size of the file can still change: a touch beyond its end would kill the process.
    #[error(
        "the memory file lacks seals: it has {seals:#x} and needs {wanted:#x}, otherwise its size \
         could change; seal it with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"
    )]
    Unsealed {
        /// The seals of the file.
        seals: i32,
        /// The required seals.
        wanted: i32,
    },
    /// The file has another size than expected.
    #[error(
        "the memory file has {found} bytes instead of the expected {expected}: pass the size that \
         the other process mapped"
    )]
    WrongSize {
        /// Its size in bytes.
        found: u64,
        /// The expected size in bytes.
        expected: u64,
    },
}
