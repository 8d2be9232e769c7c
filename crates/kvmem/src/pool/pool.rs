//! *Pool*: the four layers as one thing.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::memory::Memory;
use super::{Block, PoolBuilder, PoolError, PoolSize};
use crate::offset::{AllocError, Metrics};
use crate::slab::{Extent, ExtentCache, ExtentStats};

/// Memory that is mapped, populated and registered, and handed out in blocks.
///
/// `Send + Sync`; clones share one pool. Blocks may outlive it.
#[derive(Clone)]
pub struct Pool {
    space: ExtentCache,
    base: NonNull<u8>,
    memory: Arc<Memory>,
}

// SAFETY: an address, and what may be sent.
unsafe impl Send for Pool {}
// SAFETY: as above; the bytes are reached through blocks, which have theirs alone.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of at least this size, to be described further and then built.
    pub fn builder(size: impl Into<PoolSize>) -> PoolBuilder {
        PoolBuilder::new(size.into())
    }

    pub(super) fn new(space: ExtentCache, memory: Arc<Memory>) -> Pool {
        Pool { space, base: memory.base(), memory }
    }

    /// A block of `len` bytes. O(1), some nanoseconds for a hot size.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with what the offset layer says.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Block, PoolError> {
        match self.space.allocate(len as u64) {
            Ok(extent) => Ok(self.block(extent)),
            Err(error) => Err(self.refusal(error)),
        }
    }

    /// A block of `len` bytes that begins at a multiple of `align`, a power of two, both in the pool and in memory.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_aligned(&self, len: usize, align: usize) -> Result<Block, PoolError> {
        let extent = self.space.allocate_aligned(len as u64, align as u64);
        extent.map(|extent| self.block(extent)).map_err(|error| self.refusal(error))
    }

    /// `n` blocks of `len` bytes each, all of them or none, under one lock.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_batch(&self, len: usize, n: usize) -> Result<Vec<Block>, PoolError> {
        let batch = self.space.allocate_batch(len as u64, n).map_err(|error| self.refusal(error))?;
        Ok(batch.into_iter().map(|extent| self.block(extent)).collect())
    }

    /// `total` bytes in at most `max_blocks` blocks.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_scattered(&self, total: usize, max_blocks: usize) -> Result<Vec<Block>, PoolError> {
        let pieces = self.space.allocate_scattered(total as u64, max_blocks);
        let pieces = pieces.map_err(|error| self.refusal(error))?;
        Ok(pieces.into_iter().map(|extent| self.block(extent)).collect())
    }

    #[inline(always)]
    fn block(&self, extent: Extent) -> Block {
        // SAFETY: the base is that of the memory that the books of this space keep, and the space is no longer than it.
        unsafe { Block::over(extent, self.base) }
    }

    #[cold]
    fn refusal(&self, error: AllocError) -> PoolError {
        PoolError::Refused(error)
    }

    /// Bytes that blocks can have.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.space.capacity()
    }

    /// Takes back what threads have cached, so that neighbours join.
    pub fn trim(&self) {
        self.space.trim();
    }

    /// Figures of the offsets; see [`ExtentCache::metrics`].
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.space.metrics()
    }

    /// What is cached, and what has been done; see [`ExtentCache::stats`].
    #[must_use]
    pub fn stats(&self) -> ExtentStats {
        self.space.stats()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("memory", &self.memory).field("metrics", &self.metrics()).finish()
    }
}
