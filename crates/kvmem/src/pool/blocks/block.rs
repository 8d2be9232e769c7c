//! [`Block`]: allocated bytes of a pool.

use super::memory::{self, PoolMemory};
use crate::pool::PoolError;
use crate::register::Key;
use crate::slab::Extent;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::{fmt, slice};

/// Allocated bytes of a [`Pool`](crate::pool::Pool), exactly as many as requested. Dropping the
/// block frees them.
///
/// 20 bytes, move-only, `Send` and `Sync`. It may outlive its pool: the memory and its
/// registrations are released with the last block. Dropping it takes as long as dropping an
/// [`Extent`]; only the last block of a dropped pool also pays for deregistering and unmapping.
///
/// A new block contains what an earlier block left there, or zeros: see [`InitOn`](super::InitOn).
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::pool::Pool;
///
/// let pool = Pool::builder("4 MiB").ladder(PageSize::Base).build()?;
/// let mut block = pool.allocate(1000)?;
/// block.bytes_mut().fill(7);
/// drop(pool);
/// assert_eq!(block.bytes(), [7; 1000]);
/// # Ok::<(), kvmem::pool::PoolError>(())
/// ```
///
/// Its bytes cannot outlive it:
///
/// ```compile_fail,E0505
/// # use kvmem::pool::Pool;
/// let pool = Pool::builder("4 MiB").build()?;
/// let block = pool.allocate(1000)?;
/// let bytes = block.bytes();
/// drop(block);
/// println!("{}", bytes[0]);
/// # Ok::<(), kvmem::pool::PoolError>(())
/// ```
#[must_use = "dropping a block frees it"]
pub struct Block(Extent);

impl Block {
    /// Makes a block from an extent.
    ///
    /// # Safety
    /// Memory was [attached](memory::attach) to the extent's space.
    #[inline(always)]
    pub(in crate::pool) unsafe fn over(extent: Extent) -> Block {
        Block(extent)
    }

    /// Returns the first address.
    #[inline(always)]
    fn at(&self) -> NonNull<u8> {
        // SAFETY: `over` promises that the space has memory, and this block keeps it. The block
        // lies within the space, which is never longer than the memory (`attach`): so the sum is
        // an address of the same mapping, and the offset is below `isize::MAX`.
        unsafe { memory::base_of(self.space()).add(self.offset() as usize) }
    }

    /// Returns the bytes.
    ///
    /// The caller ensures that no device and no other process writes to the bytes while the slice
    /// is used: see [`key`](Self::key) and [`Pool::share`](crate::pool::Pool::share).
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: all of the range is mapped for reading while the block exists, in one mapping
        // shorter than `isize::MAX`. Its bytes have values: the kernel gives zeros. Extents do not
        // overlap, so this process writes to them only by `&mut self`, which `&self` excludes.
        // Other processes do not write to them meanwhile (`Pool::share`), nor do devices, which
        // write only what the caller requests (`key`).
        unsafe { slice::from_raw_parts(self.at().as_ptr(), self.len()) }
    }

    /// Returns the bytes for writing.
    ///
    /// As with [`bytes`](Self::bytes), the caller ensures that neither a device nor another process
    /// reads or writes them while the slice is used.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, for writing too, and with values, as in `bytes`. No other block overlaps
        // the range, and `&mut self` excludes other slices of this one. Other processes
        // (`Pool::share`) and devices (`key`) do not use the bytes meanwhile.
        unsafe { slice::from_raw_parts_mut(self.at().as_ptr(), self.len()) }
    }

    /// Returns the first address.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.at().as_ptr()
    }

    /// Returns the first address, for writing.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at().as_ptr()
    }

    /// Returns the offset of the block in its pool, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset()
    }

    /// Returns the length in bytes, exactly as requested. O(1). From 4 GiB − 1 B up it takes the
    /// lock of the offset allocator.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len() as usize
    }

    /// Returns `offset()..offset() + len()`.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.0.range()
    }

    /// Returns the key with which a registrar can reach all of the block. It is valid as long as
    /// the block.
    ///
    /// Devices write by the key: the caller that starts their work ensures that no thread uses the
    /// bytes meanwhile. Takes a lock of the part that is never held for long; O(registrars).
    ///
    /// # Errors
    /// [`RegisterError::NoSuchDevice`](crate::register::RegisterError::NoSuchDevice).
    pub fn key(&self, device: &str) -> Result<Key, PoolError> {
        self.place().key(device, self.len())
    }

    /// Returns the key of each registrar, with its name, in order; none if there is no registrar.
    ///
    /// # Errors
    /// Those of [`key`](Self::key), which do not occur in a sound pool.
    pub fn keys(&self) -> Result<Vec<(String, Key)>, PoolError> {
        self.place().keys(self.len())
    }

    /// Returns a reference by plain data, for another process that has
    /// [attached](crate::pool::AttachedPool) the pool. It says where the bytes are, and does not
    /// keep the block alive.
    ///
    /// # Errors
    /// [`PoolError::Private`].
    pub fn reference(&self) -> Result<BlockRef, PoolError> {
        self.place().reference(self.len())
    }

    /// Frees a part of the block and returns the rest before and behind it. O(1).
    ///
    /// # Errors
    /// Those of [`Extent::free_range`], with the unchanged block.
    pub fn free_range(
        self,
        part: Range<usize>,
    ) -> Result<(Option<Block>, Option<Block>), (Block, PoolError)> {
        let offset = self.offset();
        let sub = offset.saturating_add(part.start as u64)..offset.saturating_add(part.end as u64);
        // SAFETY: the extents are of the space of this block, and `over` promised for this block
        // that the space has memory.
        let block = |extent| unsafe { Block::over(extent) };
        match self.0.free_range(sub) {
            Ok((left, right)) => Ok((left.map(block), right.map(block))),
            Err((whole, error)) => Err((block(whole), error.into())),
        }
    }

    /// Frees the block except for a part, which is not empty and lies within it.
    pub(in crate::pool) fn narrow(self, part: Range<usize>) -> Result<Block, PoolError> {
        let len = self.len();
        let mut block = self;
        if part.end < len {
            block.shrink(part.end)?;
        }
        if part.start == 0 {
            return Ok(block);
        }
        match block.free_range(0..part.start) {
            Ok((_, Some(rest))) => Ok(rest),
            Ok((_, None)) => Err(PoolError::OutOfBounds {
                range: part.start as u64..part.end as u64,
                len: len as u64,
            }),
            Err((_, error)) => Err(error),
        }
    }

    pub(in crate::pool) fn into_extent(self) -> Extent {
        self.0
    }

    /// Returns the number of the block's space.
    #[inline(always)]
    pub(in crate::pool) fn space(&self) -> u32 {
        self.0.space()
    }

    pub(super) fn place(&self) -> BlockPlace<'_> {
        BlockPlace { offset: self.offset(), space: self.space(), block: PhantomData }
    }

    /// Returns the place and the bytes for writing, both borrowed from the block.
    pub(super) fn place_and_bytes(&mut self) -> (BlockPlace<'_>, &mut [u8]) {
        let place = BlockPlace { offset: self.offset(), space: self.space(), block: PhantomData };
        (place, self.bytes_mut())
    }

    /// Frees the tail of the block. The block then has `new_len` bytes and begins where it did.
    /// O(1).
    ///
    /// # Errors
    /// Those of [`Extent::shrink`]; nothing changes then.
    pub fn shrink(&mut self, new_len: usize) -> Result<(), PoolError> {
        Ok(self.0.shrink(new_len as u64)?)
    }

    /// Extends the block into the free bytes behind it. The block then has `new_len` bytes and
    /// begins where it did; no byte moves. O(1).
    ///
    /// # Errors
    /// Those of [`Extent::extend`]; nothing changes then.
    pub fn extend(&mut self, new_len: usize) -> Result<(), PoolError> {
        Ok(self.0.extend(new_len as u64)?)
    }
}

/// The place of a block or of a part of one, without its bytes. The lifetime is that of a borrow
/// of the block: the memory exists meanwhile.
#[derive(Clone, Copy)]
pub(super) struct BlockPlace<'a> {
    pub(super) offset: u64,
    space: u32,
    block: PhantomData<&'a Block>,
}

impl<'a> BlockPlace<'a> {
    /// Returns the place of a part that begins `start` bytes further on.
    pub(super) fn at(self, start: u64) -> BlockPlace<'a> {
        BlockPlace { offset: self.offset + start, ..self }
    }

    /// Returns the place of a part of a block of `len` bytes.
    pub(super) fn part(
        self,
        range: &Range<usize>,
        len: usize,
    ) -> Result<BlockPlace<'a>, PoolError> {
        if range.start > range.end || range.end > len {
            let range = range.start as u64..range.end as u64;
            return Err(PoolError::OutOfBounds { range, len: len as u64 });
        }
        Ok(self.at(range.start as u64))
    }

    fn memory(&self) -> &PoolMemory {
        // SAFETY: the block of this space is borrowed for `'a`, so it exists while `self` does, and
        // the result is borrowed from `self`.
        unsafe { memory::of(self.space) }
    }

    fn range(&self, len: usize) -> Range<u64> {
        self.offset..self.offset + len as u64
    }

    pub(super) fn key(&self, device: &str, len: usize) -> Result<Key, PoolError> {
        Ok(self.memory().key(device, self.range(len))?)
    }

    pub(super) fn keys(&self, len: usize) -> Result<Vec<(String, Key)>, PoolError> {
        Ok(self.memory().keys(self.range(len))?)
    }

    pub(super) fn reference(&self, len: usize) -> Result<BlockRef, PoolError> {
        match self.memory().number() {
            0 => Err(PoolError::Private),
            pool => Ok(BlockRef { pool, offset: self.offset, len: len as u64 }),
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("offset", &self.offset()).field("len", &self.len()).finish()
    }
}

/// A reference to a block by plain data. Another process finds the block with it in the pool that
/// it has [attached](crate::pool::AttachedPool).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockRef {
    /// The pool: the number of its memory file. No other memory file has the number while this one
    /// exists.
    pub pool: u64,
    /// The offset of the block in the pool, in bytes.
    pub offset: u64,
    /// The length of the block in bytes.
    pub len: u64,
}

impl BlockRef {
    /// Returns three numbers: pool, offset, length.
    #[must_use]
    pub fn to_bits(self) -> [u64; 3] {
        [self.pool, self.offset, self.len]
    }

    /// Makes a reference from these numbers. Resolving it checks whether it names a range.
    #[must_use]
    pub fn from_bits([pool, offset, len]: [u64; 3]) -> BlockRef {
        BlockRef { pool, offset, len }
    }
}
