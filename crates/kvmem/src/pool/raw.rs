//! *Raw face*: blocks named by plain data, for C.
//!
//! As in the raw face of [`ExtentCache`](crate::slab::ExtentCache), every misuse of a handle is
//! detected and changes nothing. The block lives until its handle is freed, or until the pool ends.

use std::ops::Range;
use std::ptr::NonNull;

use super::{Block, BlockRef, Pool, PoolError};
use crate::offset::{RawAllocation, RawError, RawHandle};
use crate::register::Key;

impl Pool {
    /// Allocates a block of `len` bytes that lives until [`free_raw`](Self::free_raw), or until the
    /// pool ends. O(1).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
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
    /// Returns the block if it belongs to another pool.
    pub fn make_raw(&self, block: Block) -> Result<RawAllocation, Block> {
        // SAFETY: the extent that comes back was that of a block, whose space has memory.
        self.space.make_raw(block.into_extent()).map_err(|extent| unsafe { Block::over(extent) })
    }

    /// Turns a raw block into one that frees itself; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Block, RawError> {
        // SAFETY: the extent is of the pool's space.
        self.space.adopt_raw(handle).map(|extent| unsafe { self.block(extent) })
    }

    /// Frees a raw block and returns its length in bytes. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`], [`RawError::Stale`]; nothing changes then.
    #[inline]
    pub fn free_raw(&self, handle: RawHandle) -> Result<u64, RawError> {
        self.space.free_raw(handle)
    }

    /// Returns the range of a raw block, in bytes of the pool. O(1).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<Range<u64>, RawError> {
        self.space.resolve_raw(handle)
    }

    /// Shrinks a raw block as [`Block::shrink`] does; the handle stays valid.
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw), and [`RawError::Failed`] with the error of
    /// [`Block::shrink`].
    pub fn shrink_raw(&self, handle: RawHandle, new_len: usize) -> Result<(), RawError> {
        self.space.shrink_raw(handle, new_len as u64)
    }

    /// Extends a raw block as [`Block::extend`] does; the handle stays valid.
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw), and [`RawError::Failed`] with the error of
    /// [`Block::extend`].
    pub fn extend_raw(&self, handle: RawHandle, new_len: usize) -> Result<(), RawError> {
        self.space.extend_raw(handle, new_len as u64)
    }

    /// Returns the key of a raw block for a registrar; see [`Block::key`].
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw) outside, those of [`Block::key`] inside.
    pub fn key_raw(
        &self,
        handle: RawHandle,
        device: &str,
    ) -> Result<Result<Key, PoolError>, RawError> {
        let range = self.resolve_raw(handle)?;
        Ok(self.memory.key(device, range).map_err(PoolError::from))
    }

    /// Returns the reference to a raw block for other processes; see [`Block::reference`].
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw) outside, those of [`Block::reference`] inside.
    pub fn reference_raw(
        &self,
        handle: RawHandle,
    ) -> Result<Result<BlockRef, PoolError>, RawError> {
        let range = self.resolve_raw(handle)?;
        let reference = |pool| BlockRef { pool, offset: range.start, len: range.end - range.start };
        Ok(self.share_id().map(reference).ok_or(PoolError::Private))
    }

    /// Returns the number of live raw blocks; approximate while other threads change it. These
    /// blocks end with the last clone of the pool, while other blocks keep the memory. O(maximum
    /// number of blocks that lived at one time).
    #[must_use]
    pub fn raw_blocks(&self) -> u64 {
        self.space.raw_extents()
    }

    /// Returns the first address of the pool, to which offsets are added.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
}
