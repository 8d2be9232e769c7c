//! *Machine*: reads the limits that the kernel and its cgroups set.

mod cpus;
mod groups;
pub(super) mod hugetlb;
mod meminfo;
mod nodes;
pub(super) mod thp;

pub(crate) use cpus::usable_cores;
pub(super) use groups::{Group, groups};
pub(super) use meminfo::meminfo;
