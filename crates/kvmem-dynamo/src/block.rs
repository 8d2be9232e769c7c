//! *Block memory*: one block of a pool, as Dynamo's storage.

use std::any::Any;

use dynamo_memory::nixl::{MemType, NixlCompatible, NixlDescriptor};
use dynamo_memory::{Buffer, MemoryDescriptor, StorageKind};
use kvmem::pool::Block;

/// A block of a pool, which goes back to the pool when this value is dropped. Nobody else can
/// access its bytes meanwhile.
#[derive(Debug)]
pub struct BlockMemory {
    block: Block,
    addr: usize,
    size: usize,
    kind: StorageKind,
    /// The registered memory of the pool.
    within: Option<Buffer>,
}

/// A block does not lie in the memory that was given for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the block at {block_addr:#x} of {block_bytes} bytes does not lie in the memory at \
     {memory_addr:#x} of {memory_bytes} bytes: give the memory of the pool that the block is from"
)]
#[non_exhaustive]
pub struct BlockOutsideError {
    /// The first address of the block.
    pub block_addr: usize,
    /// The length of the block.
    pub block_bytes: usize,
    /// The first address of the memory.
    pub memory_addr: usize,
    /// The length of the memory.
    pub memory_bytes: usize,
}

impl BlockMemory {
    /// Makes storage of a block. Dynamo registers it with its NIXL agent by itself.
    #[must_use]
    pub fn new(mut block: Block) -> BlockMemory {
        // Dynamo makes pointers from the number.
        let addr = block.as_mut_ptr().expose_provenance();
        let size = block.len();
        let keys = block.keys().unwrap_or_default();
        let kind = crate::kind(keys.iter().map(|(device, _)| device.as_str()));
        BlockMemory { block, addr, size, kind, within: None }
    }

    /// Makes storage of a block in memory that Dynamo's agent has registered: the
    /// [`PoolMemory`](crate::PoolMemory) of its pool. The block needs no registration of its own,
    /// and keeps that of the memory alive.
    ///
    /// # Errors
    /// [`BlockOutsideError`] if the block does not lie in that memory; the block goes back to its
    /// pool.
    pub fn within(block: Block, memory: &Buffer) -> Result<BlockMemory, BlockOutsideError> {
        let mut storage = BlockMemory::new(block);
        let (memory_addr, memory_bytes) = (memory.addr(), memory.size());
        let end = memory_addr.saturating_add(memory_bytes);
        if storage.addr < memory_addr || storage.addr.saturating_add(storage.size) > end {
            return Err(BlockOutsideError {
                block_addr: storage.addr,
                block_bytes: storage.size,
                memory_addr,
                memory_bytes,
            });
        }
        storage.kind = memory.storage_kind();
        storage.within = Some(memory.clone());
        Ok(storage)
    }

    /// Returns the block, whose bytes are accessible again.
    pub fn into_block(self) -> Block {
        self.block
    }
}

impl MemoryDescriptor for BlockMemory {
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

    /// Returns the block's part of the registration of the pool's memory, if there is one.
    fn nixl_descriptor(&self) -> Option<NixlDescriptor> {
        let mut descriptor = self.within.as_ref()?.nixl_descriptor()?;
        descriptor.addr = self.addr as u64;
        descriptor.size = self.size;
        Some(descriptor)
    }
}

impl NixlCompatible for BlockMemory {
    fn nixl_params(&self) -> (*const u8, usize, MemType, u64) {
        (self.block.as_ptr(), self.size, MemType::Dram, 0)
    }
}
