//! Allocators of blocks of a hot size.

use std::hint::black_box;

use anyhow::Result;
use kvmem::arena::PageSize;
use kvmem::offset::OffsetAllocator;
use kvmem::pool::{Block, Pool};
use kvmem::slab::{Extent, ExtentCache};

use super::BLOCK_BYTES;

/// Bytes of the space of the blocks.
const SPACE: usize = 64 << 20;

/// Allocates blocks of [`BLOCK_BYTES`] bytes, which are freed when they are dropped.
pub(super) trait BlockSource: Sync + Sized {
    /// An allocated block.
    type Block;

    fn create() -> Result<Self>;

    fn allocate(&self) -> Result<Self::Block>;
}

impl BlockSource for Pool {
    type Block = Block;

    fn create() -> Result<Self> {
        Ok(Pool::builder(SPACE).ladder(PageSize::Base).hot_sizes([BLOCK_BYTES as u64]).build()?)
    }

    #[inline]
    fn allocate(&self) -> Result<Block> {
        Ok(Pool::allocate(self, black_box(BLOCK_BYTES))?)
    }
}

impl BlockSource for ExtentCache {
    type Block = Extent;

    fn create() -> Result<Self> {
        let space = OffsetAllocator::builder(SPACE as u64);
        Ok(ExtentCache::builder(space).hot_sizes([BLOCK_BYTES as u64]).build()?)
    }

    #[inline]
    fn allocate(&self) -> Result<Extent> {
        Ok(ExtentCache::allocate(self, black_box(BLOCK_BYTES as u64))?)
    }
}

/// Allocates nothing; returns a value of the size of a handle.
pub(super) struct NoBlocks;

impl BlockSource for NoBlocks {
    type Block = [u32; 5];

    fn create() -> Result<Self> {
        Ok(NoBlocks)
    }

    #[inline]
    fn allocate(&self) -> Result<[u32; 5]> {
        Ok([black_box(BLOCK_BYTES) as u32; 5])
    }
}
