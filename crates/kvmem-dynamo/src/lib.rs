//! Dynamo's storage traits for kvmem's memory.
//!
//! Dynamo describes memory by two traits of `dynamo-memory`: [`MemoryDescriptor`] has the address,
//! the size and the kind, [`NixlCompatible`] what NIXL registers. Its layouts of KV blocks
//! (`kvbm-physical`) are built on any memory with both. The types here have both:
//!
//! | type | memory | made from |
//! |---|---|---|
//! | [`RegionMemory`] | a region of the arena: hugepages, NUMA placement, shared or private | a `Region`, or a `RegistrationSet`, whose GPU has pinned it |
//! | [`PoolMemory`] | all memory of a pool, registered once | a `Pool` |
//! | [`BlockMemory`] | one block of a pool | a `Block` |
//!
//! ```text
//!  kvmem            Region ── RegistrationSet        Pool ───────── Block
//!                     │            │                  │               │
//!  kvmem-dynamo     RegionMemory (Pinned)         PoolMemory ──▶ BlockMemory
//!                     └─────────────┴─────┬────────────┴───────────────┘
//!  dynamo-memory              Buffer, NixlRegistered
//!  kvbm-physical              PhysicalLayoutBuilder
//! ```
//!
//! ```
//! use dynamo_memory::{Buffer, MemoryDescriptor, StorageKind};
//! use kvmem::arena::{Populate, Region};
//! use kvmem_dynamo::RegionMemory;
//!
//! let region = Region::builder(8 << 20).populate(Populate::Auto).map()?;
//! let memory = RegionMemory::new(region);
//! assert_eq!(memory.storage_kind(), StorageKind::System);
//! let buffer = Buffer::new(memory); // what Dynamo's layouts and allocators take
//! assert!(buffer.size() >= 8 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The kind of memory
//!
//! Dynamo copies between a GPU and memory of the kind *pinned* without waiting, and relies on it
//! that a GPU has registered the memory. Memory is of that kind here if a registrar `cuda` has
//! registered it; otherwise it is *system* memory. Both are `DRAM` for NIXL.
//!
//! # Lifetimes
//!
//! A value here keeps its memory mapped and its registrations alive. Dynamo's `NixlRegistered`
//! deregisters memory from NIXL before it drops the value.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod block;
mod pool;
mod region;

pub use block::{BlockMemory, BlockOutsideError};
pub use pool::PoolMemory;
pub use region::RegionMemory;

// The traits, so that callers need not depend on the crate for them.
pub use dynamo_memory::MemoryDescriptor;
pub use dynamo_memory::nixl::{NixlCompatible, NixlMemory};

use dynamo_memory::StorageKind;

/// The beginning of the names of GPUs.
const GPU: &str = "cuda:";

/// Returns the kind of memory that these devices have registered.
fn kind<'a>(devices: impl IntoIterator<Item = &'a str>) -> StorageKind {
    match devices.into_iter().any(|name| name.starts_with(GPU)) {
        true => StorageKind::Pinned,
        false => StorageKind::System,
    }
}
