//! *Fallback*: why a part of a region is not on a higher rung of the ladder.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::size::PageSize;
use crate::sys::Errno;

/// The reason why a range is one step down the ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fallback {
    /// The kernel has no hugetlb pool of this page size.
    NoPool {
        /// The page size.
        page: PageSize,
    },
    /// The pool has too few pages that are neither used nor promised.
    PoolShort {
        /// The page size.
        page: PageSize,
        /// The number of pages needed.
        wanted: u64,
        /// The number of pages that the pool could provide.
        free: u64,
    },
    /// The nodes of the policy have too few free pages of this size.
    NodesShort {
        /// The page size.
        page: PageSize,
        /// The number of pages needed.
        wanted: u64,
        /// The number of free pages on those nodes.
        free: u64,
    },
    /// A hugetlb cgroup allows too few pages.
    CgroupShort {
        /// The page size.
        page: PageSize,
        /// The number of pages needed.
        wanted: u64,
        /// The number of pages that the group still allows.
        remaining: u64,
    },
    /// The kernel could not map the pages, although the pool seemed to have them.
    PoolFailed {
        /// The page size.
        page: PageSize,
        /// The error number.
        errno: Errno,
    },
    /// The remaining bytes are fewer than one page of this size.
    Tail {
        /// The page size.
        page: PageSize,
    },
    /// In a ladder that does not descend: pages this large do not fit after the smaller ones.
    Unaligned {
        /// The page size.
        page: PageSize,
    },
    /// Children cannot safely inherit private hugetlb pages: a child that writes while the pool is
    /// empty would be killed.
    Inherited {
        /// The page size.
        page: PageSize,
    },
    /// Transparent hugepages are off for the machine, for this process or for this kind of memory.
    ThpOff {
        /// The setting that turns them off.
        setting: String,
    },
    /// The kernel did not accept the advice to use transparent hugepages.
    ThpFailed {
        /// The error number.
        errno: Errno,
    },
    /// A part of the range is not in hugepages: the kernel had too few contiguous ones.
    ThpPartial {
        /// Bytes in hugepages.
        huge: u64,
        /// The bytes of the range.
        wanted: u64,
    },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::NoPool { page } => {
                write!(f, "the kernel has no hugetlb pool of {page} pages")
            }
            Fallback::PoolShort { page, wanted, free } => {
                write!(f, "the hugetlb pool has {free} of {wanted} {page} pages")
            }
            Fallback::NodesShort { page, wanted, free } => {
                write!(f, "the nodes have {free} of {wanted} {page} pages free")
            }
            Fallback::CgroupShort { page, wanted, remaining } => {
                write!(f, "the hugetlb cgroup has {remaining} of {wanted} {page} pages left")
            }
            Fallback::PoolFailed { page, errno } => {
                write!(f, "the kernel could not map {page} pages of the hugetlb pool: {errno}")
            }
            Fallback::Tail { page } => write!(f, "shorter than one {page} page"),
            Fallback::Unaligned { page } => {
                write!(f, "{page} pages do not fit after smaller ones")
            }
            Fallback::Inherited { page } => {
                write!(f, "children cannot safely inherit private {page} pages")
            }
            Fallback::ThpOff { setting } => write!(f, "transparent hugepages are off: {setting}"),
            Fallback::ThpFailed { errno } => {
                write!(f, "the kernel does not accept advice for transparent hugepages: {errno}")
            }
            Fallback::ThpPartial { huge, wanted } => {
                write!(f, "the kernel provided hugepages for {huge} of {wanted} bytes")
            }
        }
    }
}
