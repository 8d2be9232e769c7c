//! *Raw face*: blocks named by plain data, for C.
//!
//! As [`ExtentCache`](crate::slab::ExtentCache)'s: every misuse of a handle is seen, and nothing is
//! touched then. The block lives until its handle is freed, or as long as the pool.

use std::ops::Range;
use std::ptr::NonNull;

use super::{Block, BlockRef, Pool, PoolError};
use crate::offset::{RawAllocation, RawError, RawHandle};
use crate::register::Key;

impl Pool {
    /// As [`allocate`](Self::allocate), but the block lives until [`free_raw`](Self::free_raw), or
    /// as long as the pool. O(1).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// ```
    /// use kvmem::arena::PageSize;
    /// use kvmem::offset::RawError;
    /// use kvmem::pool::Pool;
    ///
    /// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let block = pool.allocate_raw(1000)?;
    /// assert_eq!(pool.free_raw(block.handle), Ok(1000));
    /// assert!(matches!(pool.free_raw(block.handle), Err(RawError::Stale { .. })));
    /// # Ok::<(), kvmem::pool::PoolError>(())
    /// ```
    #[inline]
    pub fn allocate_raw(&self, len: usize) -> Result<RawAllocation, PoolError> {
        match self.space.allocate_raw(len as u64) {
            Ok(raw) => Ok(raw),
            Err(error) => self.fail(error, || self.space.allocate_raw(len as u64)),
        }
    }

    /// Gives a block a raw handle. O(1).
    ///
    /// # Errors
    /// The block, if it is of another pool.
    pub fn make_raw(&self, block: Block) -> Result<RawAllocation, Block> {
        // SAFETY: what comes back is the extent of the block.
        self.space.make_raw(block.into_extent()).map_err(|extent| unsafe { Block::over(extent) })
    }

    /// Turns a raw block into one that frees itself; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Block, RawError> {
        // SAFETY: the space was placed when the pool was built, and is never longer than its
        // memory.
        self.space.adopt_raw(handle).map(|extent| unsafe { Block::over(extent) })
    }

    /// Frees a raw block; returns its length in bytes. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`], [`RawError::Stale`]; nothing is changed then.
    #[inline]
    pub fn free_raw(&self, handle: RawHandle) -> Result<u64, RawError> {
        self.space.free_raw(handle)
    }

    /// Where a raw block lies, in bytes of the pool. O(1).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<Range<u64>, RawError> {
        self.space.resolve_raw(handle)
    }

    /// As [`Block::shrink`], raw; the handle stays good.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), and [`RawError::Failed`] with what [`Block::shrink`] says.
    pub fn shrink_raw(&self, handle: RawHandle, new_len: usize) -> Result<(), RawError> {
        self.space.shrink_raw(handle, new_len as u64)
    }

    /// As [`Block::extend`], raw; the handle stays good.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), and [`RawError::Failed`] with what [`Block::extend`] says.
    pub fn extend_raw(&self, handle: RawHandle, new_len: usize) -> Result<(), RawError> {
        self.space.extend_raw(handle, new_len as u64)
    }

    /// As [`Block::key`], raw.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw) and [`Block::key`].
    pub fn key_raw(
        &self,
        handle: RawHandle,
        device: &str,
    ) -> Result<Result<Key, PoolError>, RawError> {
        let range = self.resolve_raw(handle)?;
        Ok(self.memory.key(device, range).map_err(PoolError::from))
    }

    /// As [`Block::reference`], raw.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw) and [`Block::reference`].
    pub fn reference_raw(
        &self,
        handle: RawHandle,
    ) -> Result<Result<BlockRef, PoolError>, RawError> {
        let range = self.resolve_raw(handle)?;
        let reference = |pool| BlockRef { pool, offset: range.start, len: range.end - range.start };
        Ok(self.share_id().map(reference).ok_or(PoolError::Private))
    }

    /// Raw blocks alive, of about one moment while other threads go on: those that go with the last
    /// clone of the pool, where other blocks keep the memory. O(the most blocks that ever were
    /// at a time).
    #[must_use]
    pub fn raw_blocks(&self) -> u64 {
        self.space.raw_extents()
    }

    /// The first address of the pool, to which offsets are added.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
}
