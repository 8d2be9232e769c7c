//! *Pairs*: who hands out blocks of a hot size.

use std::hint::black_box;

use kvmem::arena::PageSize;
use kvmem::offset::OffsetAllocator;
use kvmem::pool::{Block, Pool};
use kvmem::slab::{Extent, ExtentCache};

use super::{BLOCK_BYTES, MeasureError};

/// Bytes of the space that blocks are had from.
const SPACE: usize = 64 << 20;

/// Hands out blocks of [`BLOCK_BYTES`] bytes, which come back when they are dropped.
pub(super) trait Blocks: Sync + Sized {
    /// Who has one.
    type Block;

    fn create() -> Result<Self, MeasureError>;

    fn allocate(&self) -> Result<Self::Block, MeasureError>;
}

impl Blocks for Pool {
    type Block = Block;

    fn create() -> Result<Self, MeasureError> {
        Ok(Pool::builder(SPACE).ladder(PageSize::Base).hot_sizes([BLOCK_BYTES as u64]).build()?)
    }

    #[inline]
    fn allocate(&self) -> Result<Block, MeasureError> {
        Ok(Pool::allocate(self, black_box(BLOCK_BYTES))?)
    }
}

impl Blocks for ExtentCache {
    type Block = Extent;

    fn create() -> Result<Self, MeasureError> {
        let space = OffsetAllocator::builder(SPACE as u64);
        Ok(ExtentCache::builder(space).hot_sizes([BLOCK_BYTES as u64]).build()?)
    }

    #[inline]
    fn allocate(&self) -> Result<Extent, MeasureError> {
        ExtentCache::allocate(self, black_box(BLOCK_BYTES as u64))
            .map_err(|_| MeasureError::Refused)
    }
}

/// Hands out nothing, of the size of a handle.
pub(super) struct Nothing;

impl Blocks for Nothing {
    type Block = [u32; 5];

    fn create() -> Result<Self, MeasureError> {
        Ok(Nothing)
    }

    #[inline]
    fn allocate(&self) -> Result<[u32; 5], MeasureError> {
        Ok([black_box(BLOCK_BYTES) as u32; 5])
    }
}
