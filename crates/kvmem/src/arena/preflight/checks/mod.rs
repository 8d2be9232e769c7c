//! *Checks*: compares each limit with the requirements. There is one file for each kind of limit;
//! each uses [`Facts`](super::facts::Facts) and adds [`Check`](super::Check)s.

mod all;
mod cgroups;
mod cpus;
mod dma_devices;
mod hugepages;
mod idle_hugepages;
mod kernel;
mod maps;
mod memory;
mod numa;
mod pins;
mod rlimits;
mod shm;
mod shm_files;
mod sources;
mod thp;

pub(super) use all::all;
pub(super) use sources::source;
