//! *Region memory*: a region of kvmem's arena, as Dynamo's storage.

use std::any::Any;
use std::sync::Arc;

use dynamo_memory::nixl::{MemType, NixlCompatible, NixlDescriptor};
use dynamo_memory::{MemoryDescriptor, StorageKind};
use kvmem::arena::Region;
use kvmem::register::RegistrationSet;

/// A region, or a region with its registrations. Its bytes are accessed by address alone: kvmem
/// gives references to them only in `unsafe` code while this value has a share of the region.
#[derive(Debug)]
pub struct RegionMemory {
    owner: Owner,
    addr: usize,
    size: usize,
    kind: StorageKind,
}

/// The value that keeps the memory mapped.
#[derive(Debug)]
enum Owner {
    Region(Arc<Region>),
    Registered(Arc<RegistrationSet>),
}

impl RegionMemory {
    /// Makes storage of a region that no GPU has registered.
    #[must_use]
    pub fn new(region: impl Into<Arc<Region>>) -> RegionMemory {
        RegionMemory::of(Owner::Region(region.into()), StorageKind::System)
    }

    /// Makes storage of a region and keeps its registrations until the storage is dropped. The kind
    /// is *pinned* if one of the devices is a GPU.
    #[must_use]
    pub fn registered(set: impl Into<Arc<RegistrationSet>>) -> RegionMemory {
        let set = set.into();
        let kind = crate::kind(set.devices());
        RegionMemory::of(Owner::Registered(set), kind)
    }

    fn of(owner: Owner, kind: StorageKind) -> RegionMemory {
        let region = owner.region();
        // Dynamo makes pointers from the number.
        let addr = region.base().as_ptr().expose_provenance();
        let size = region.len();
        RegionMemory { owner, addr, size, kind }
    }

    /// Returns the region, with its receipt: the pages and nodes that it got.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.owner.region()
    }

    /// Returns the registrations, if there are any.
    #[must_use]
    pub fn registrations(&self) -> Option<&Arc<RegistrationSet>> {
        match &self.owner {
            Owner::Region(_) => None,
            Owner::Registered(set) => Some(set),
        }
    }
}

impl Owner {
    fn region(&self) -> &Region {
        match self {
            Owner::Region(region) => region,
            Owner::Registered(set) => set.region(),
        }
    }
}

impl MemoryDescriptor for RegionMemory {
    fn addr(&self) -> usize {
        self.addr
    }

    fn size(&self) -> usize {
        self.size
    }

    fn storage_kind(&self) -> StorageKind {
        self.kind
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    /// Returns `None`: Dynamo registers the memory with its own agent.
    fn nixl_descriptor(&self) -> Option<NixlDescriptor> {
        None
    }
}

impl NixlCompatible for RegionMemory {
    fn nixl_params(&self) -> (*const u8, usize, MemType, u64) {
        (self.region().base().as_ptr(), self.size, MemType::Dram, 0)
    }
}
