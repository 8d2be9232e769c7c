//! *Machine*: reads the limits that the kernel and its cgroups set: `/proc`, `/sys` and resource
//! limits. Mapping, populating, planning and preflight ask here, so they agree.
//!
//! Every file is read through [`MachineFiles`], whose root a test can replace.

mod cgroup_level;
mod cgroups;
mod collapse_trial;
mod cpus;
pub(super) mod devices;
mod files;
pub(super) mod hugetlb;
mod locked;
#[cfg(all(test, not(any(loom, miri))))]
mod made_up_tree;
mod meminfo;
mod nodes;
pub(super) mod parse;
pub(super) mod pins;
mod process;
pub(super) mod shm_files;
mod system;
pub(super) mod thp;

pub(super) use cgroup_level::{CgroupLevel, LimitFiles};
pub(super) use cgroups::{CgroupLimits, Cgroups, Hierarchy};
pub(crate) use cpus::usable_cores;
pub(super) use cpus::within_quota;
#[cfg(all(test, not(any(loom, miri))))]
pub(super) use cpus::{cpu_levels, tightest_quota};
pub(crate) use files::MachineFiles;
pub(super) use files::{Read, Unread};
pub(crate) use locked::{is_exempt_from_memlock, locked_bytes, pinned_bytes};
#[cfg(all(test, not(any(loom, miri))))]
pub(super) use made_up_tree::MadeUpTree;
pub(super) use meminfo::meminfo;
pub(crate) use pins::{PIECE_BYTES, max_pin_bytes};
pub(super) use process::{commit_limit, longest_free, mappings, memory_use};

pub use system::{FileSystemSpace, Rlimit, System};
