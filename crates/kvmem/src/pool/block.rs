//! *Block*: bytes of a pool that somebody has.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::PoolError;
use crate::slab::Extent;

/// Bytes of a [`Pool`](super::Pool), as many as were asked for, until this is dropped.
///
/// 32 bytes, move-only, `Send` and `Sync`. It may outlive its pool: the memory, and its registrations, go with the last block.
/// Dropping it is as quick as dropping an [`Extent`]; only the last block of a pool that is gone takes as long as giving back keys
/// and unmapping do.
///
/// What stands in a fresh block is what the last one left there, or zeros.
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::pool::Pool;
///
/// let (pool, _) = Pool::builder("4 MiB").ladder(PageSize::Base).build()?;
/// let mut block = pool.allocate(1000)?;
/// block.bytes_mut().fill(7);
/// drop(pool);
/// assert_eq!(block.bytes(), [7; 1000]);
/// # Ok::<(), kvmem::pool::PoolError>(())
/// ```
#[must_use = "dropping a block frees it"]
pub struct Block {
    extent: Extent,
    at: NonNull<u8>,
}

// SAFETY: a block has its bytes alone, as a box has, and an extent may be sent.
unsafe impl Send for Block {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Block {}

impl Block {
    /// The block over an extent.
    ///
    /// # Safety
    /// `base` is the first address of the memory that the extent's space is of, which its books keep. All of the extent lies in it, and is
    /// mapped for reading and writing.
    #[inline(always)]
    pub(super) unsafe fn over(extent: Extent, base: NonNull<u8>) -> Block {
        // SAFETY: the caller's promise.
        let at = unsafe { base.add(extent.offset() as usize) };
        Block { extent, at }
    }

    /// The bytes.
    ///
    /// Whoever has given a device work that writes to the block, or lets another process write to it, has promised that this does
    /// not happen while the slice is used.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as the extent is not freed, all of its bytes have a value (the kernel gives zeros), and
        // no other block has a part in it. Devices and other processes: those who let them have promised.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len()) }
    }

    /// The bytes, to be written.
    ///
    /// As for [`bytes`](Self::bytes), neither a device nor another process reads or writes them while the slice is used.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; and this block is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len()) }
    }

    /// The first address.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The first address, to write to.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Where the block begins in its pool, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.extent.offset()
    }

    /// Its length in bytes: exactly what was asked for. O(1); from 4 GiB − 1 B up it takes the lock of the books.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.extent.size() as usize
    }

    /// `offset()..offset() + len()`.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.extent.range()
    }

    /// Gives back the tail: the block is `new_len` bytes afterwards and begins where it did. O(1).
    ///
    /// # Errors
    /// As [`Extent::shrink`]; nothing is changed then.
    pub fn shrink(&mut self, new_len: usize) -> Result<(), PoolError> {
        Ok(self.extent.shrink(new_len as u64)?)
    }

    /// Takes in free bytes that lie behind: the block is `new_len` bytes afterwards and begins where it did; nothing is moved. O(1).
    ///
    /// # Errors
    /// As [`Extent::extend`]; nothing is changed then.
    pub fn extend(&mut self, new_len: usize) -> Result<(), PoolError> {
        Ok(self.extent.extend(new_len as u64)?)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("offset", &self.offset()).field("len", &self.len()).finish()
    }
}
