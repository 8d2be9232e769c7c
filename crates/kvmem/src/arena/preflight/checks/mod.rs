//! *Checks*: compares each limit with the requirements. There is one file for each kind of limit;
//! each uses [`Facts`](super::facts::Facts) and adds [`Check`](super::Check)s.

mod all;
mod cgroups;
mod cpus;
mod hugepages;
mod kernel;
mod maps;
mod memory;
mod numa;
mod rlimits;
mod shm;
mod thp;

pub(super) use all::all;
