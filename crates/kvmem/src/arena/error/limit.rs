//! *Limit*: a bound that the machine, the kernel or a cgroup sets, and what to do about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arena::PageSize;

/// A limit that was reached, with its value in bytes unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// `RLIMIT_AS`, `ulimit -v`.
    AddressSpace(u64),
    /// The longest free address range of this process. The machine and the kernel determine it;
    /// usually a process has 128 TiB of addresses in total.
    Addresses(u64),
    /// `RLIMIT_DATA`, `ulimit -d`.
    Data(u64),
    /// `RLIMIT_MEMLOCK`, `ulimit -l`; it applies to mappings after `mlockall(MCL_FUTURE)`.
    Locked(u64),
    /// `RLIMIT_FSIZE`, `ulimit -f`.
    FileSize(u64),
    /// The machine's available memory: `MemAvailable` and free swap, minus the bytes that other
    /// calls and processes have reserved.
    Machine(u64),
    /// A memory cgroup: its directory, its limit, and the remaining bytes.
    Cgroup {
        /// Directory of the group.
        group: String,
        /// Its limit in bytes.
        limit: u64,
        /// The remaining bytes, minus those that other calls and processes have reserved.
        remaining: u64,
    },
    /// The hugetlb pool of this page size: its pages that are neither used nor promised.
    Pool {
        /// Size of the pages.
        page: PageSize,
        /// Free pages.
        free: u64,
    },
    /// The commit limit, while `vm.overcommit_memory` is 2.
    Commit(u64),
    /// `vm.max_map_count`, the number of mappings of a process.
    Maps(u64),
}

impl Limit {
    /// Returns what to do about the limit.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Limit::AddressSpace(_) => "raise RLIMIT_AS (ulimit -v unlimited)".to_owned(),
            Limit::Addresses(free) => {
                format!("request less than {free} bytes: no setting raises this limit")
            }
            Limit::Data(_) => "raise RLIMIT_DATA (ulimit -d unlimited)".to_owned(),
            Limit::Locked(_) => "raise RLIMIT_MEMLOCK (ulimit -l unlimited)".to_owned(),
            Limit::FileSize(_) => "raise RLIMIT_FSIZE (ulimit -f unlimited)".to_owned(),
            Limit::Machine(_) => "request less, or free memory on the machine".to_owned(),
            Limit::Cgroup { group, .. } => {
                format!(
                    "raise the memory limit of the container or of the cgroup {group}, or request \
                     less"
                )
            }
            Limit::Pool { page, .. } => format!(
                "reserve more: echo N > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages; or \
                 allow smaller pages",
                page.bytes() >> 10
            ),
            Limit::Commit(_) => {
                "set vm.overcommit_memory to 0 or 1, raise vm.overcommit_ratio, or request less"
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
                write!(f, "the longest free address range of this process has {bytes} bytes")
            }
            Limit::Data(bytes) => write!(f, "RLIMIT_DATA is {bytes} bytes"),
            Limit::Locked(bytes) => write!(f, "RLIMIT_MEMLOCK is {bytes} bytes"),
            Limit::FileSize(bytes) => write!(f, "RLIMIT_FSIZE is {bytes} bytes"),
            Limit::Machine(bytes) => write!(f, "the machine has {bytes} bytes available"),
            Limit::Cgroup { group, limit, remaining } => {
                write!(f, "cgroup {group} has {remaining} bytes left of {limit}")
            }
            Limit::Pool { page, free } => {
                write!(f, "the hugetlb pool of {page} pages has {free} free")
            }
            Limit::Commit(bytes) => write!(f, "the commit limit is {bytes} bytes"),
            Limit::Maps(count) => write!(f, "vm.max_map_count is {count}"),
        }
    }
}

/// Shows "; the limit: the remedy", or nothing.
pub(super) struct LimitAndRemedy<'a>(pub(super) &'a Option<Limit>);

impl fmt::Display for LimitAndRemedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |limit| write!(f, "; {limit}: {}", limit.remedy()))
    }
}
