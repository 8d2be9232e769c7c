//! *Pool memory*: all memory of a pool, as Dynamo's storage. Registered once, it serves every
//! block.

use std::any::Any;
use std::sync::Arc;

use dynamo_memory::nixl::{MemType, NixlCompatible, NixlDescriptor};
use dynamo_memory::{MemoryDescriptor, StorageKind};
use kvmem::pool::Pool;

/// All memory of a pool. Register it with Dynamo's NIXL agent, and give
/// [`BlockMemory::within`](crate::BlockMemory::within) the result: blocks of the pool then need no
/// registration of their own.
///
/// The pool keeps its memory as long as any share of it exists.
#[derive(Debug)]
pub struct PoolMemory {
    pool: Arc<Pool>,
    addr: usize,
    size: usize,
    kind: StorageKind,
}

impl PoolMemory {
    /// Makes storage of a pool. Its memory must be complete: a pool that is still being
    /// provisioned has only the part that is ready.
    ///
    /// # Safety
    /// Dynamo reads and writes only bytes of blocks that it was given as
    /// [`BlockMemory`](crate::BlockMemory): a layout is never built on the whole pool while other
    /// code has blocks, because their references promise that nobody else writes.
    #[must_use]
    pub unsafe fn new(pool: impl Into<Arc<Pool>>) -> PoolMemory {
        let pool = pool.into();
        let kind = crate::kind(pool.devices().iter().map(String::as_str));
        // Dynamo makes pointers from the number.
        let addr = pool.as_ptr().expose_provenance();
        let size = usize::try_from(pool.capacity()).unwrap_or(usize::MAX);
        PoolMemory { pool, addr, size, kind }
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl MemoryDescriptor for PoolMemory {
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

impl NixlCompatible for PoolMemory {
    fn nixl_params(&self) -> (*const u8, usize, MemType, u64) {
        (self.pool.as_ptr(), self.size, MemType::Dram, 0)
    }
}
