//! *Sub-block*: a part of a block, by reference.

use std::fmt;
use std::ops::Range;

use super::block::BlockRef;
use super::block::{Block, BlockPlace};
use crate::pool::PoolError;
use crate::register::Key;

/// A part of a [`Block`], borrowed from it: its bytes, its place, its keys. `Copy`.
#[derive(Clone, Copy)]
pub struct SubBlock<'a> {
    bytes: &'a [u8],
    place: BlockPlace<'a>,
}

/// A part of a [`Block`], borrowed exclusively: its bytes can be written.
pub struct SubBlockMut<'a> {
    bytes: &'a mut [u8],
    place: BlockPlace<'a>,
}

impl Block {
    /// Borrows a part of the block. O(1).
    ///
    /// ```
    /// use kvmem::arena::PageSize;
    /// use kvmem::pool::Pool;
    ///
    /// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let layers = pool.allocate(32 * 1000)?;
    /// let third = layers.sub(2000..3000)?;
    /// assert_eq!((third.len(), third.offset()), (1000, layers.offset() + 2000));
    /// # Ok::<(), kvmem::pool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`].
    pub fn sub(&self, range: Range<usize>) -> Result<SubBlock<'_>, PoolError> {
        let place = self.place().part(&range, self.len())?;
        Ok(SubBlock { bytes: &self.bytes()[range], place })
    }

    /// Borrows a part of the block for writing. O(1).
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`].
    pub fn sub_mut(&mut self, range: Range<usize>) -> Result<SubBlockMut<'_>, PoolError> {
        let (place, bytes) = self.place_and_bytes();
        let place = place.part(&range, bytes.len())?;
        Ok(SubBlockMut { bytes: &mut bytes[range], place })
    }

    /// Returns the parts of the block, of `len` bytes each; the last may be shorter. A `len` of 0
    /// gives no parts.
    pub fn chunks(&self, len: usize) -> impl Iterator<Item = SubBlock<'_>> {
        let place = self.place();
        self.bytes()
            .chunks(len.max(1))
            .take(if len == 0 { 0 } else { usize::MAX })
            .enumerate()
            .map(move |(number, bytes)| SubBlock { bytes, place: place.at((number * len) as u64) })
    }
}

macro_rules! part_of_block {
    ($name:ident) => {
        impl $name<'_> {
            /// Returns the bytes; see [`Block::bytes`].
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                self.bytes
            }

            /// Returns the length in bytes.
            #[must_use]
            pub fn len(&self) -> usize {
                self.bytes.len()
            }

            /// Returns whether the part has no bytes.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.bytes.is_empty()
            }

            /// Returns the first address.
            #[must_use]
            pub fn as_ptr(&self) -> *const u8 {
                self.bytes.as_ptr()
            }

            /// Returns the offset of the part in the pool, in bytes.
            #[must_use]
            pub fn offset(&self) -> u64 {
                self.place.offset
            }

            /// Returns `offset()..offset() + len()`.
            #[must_use]
            pub fn range(&self) -> Range<u64> {
                self.offset()..self.offset() + self.len() as u64
            }

            /// Returns the key for a registrar; see [`Block::key`].
            ///
            /// # Errors
            /// Those of [`Block::key`].
            pub fn key(&self, device: &str) -> Result<Key, PoolError> {
                self.place.key(device, self.len())
            }

            /// Returns the key of each registrar; see [`Block::keys`].
            ///
            /// # Errors
            /// Those of [`Block::keys`].
            pub fn keys(&self) -> Result<Vec<(String, Key)>, PoolError> {
                self.place.keys(self.len())
            }

            /// Returns the reference for other processes; see [`Block::reference`].
            ///
            /// # Errors
            /// Those of [`Block::reference`].
            pub fn reference(&self) -> Result<BlockRef, PoolError> {
                self.place.reference(self.len())
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("offset", &self.offset())
                    .field("len", &self.len())
                    .finish()
            }
        }
    };
}

part_of_block!(SubBlock);
part_of_block!(SubBlockMut);

impl SubBlockMut<'_> {
    /// Returns the bytes for writing; see [`Block::bytes_mut`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Returns two parts, `[0, mid)` and `[mid, len)`, that can be written at the same time.
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`].
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(SubBlockMut<'_>, SubBlockMut<'_>), PoolError> {
        let len = self.len();
        let (left, right) = (self.place, self.place.part(&(mid..len), len)?);
        let (low, high) = self.bytes.split_at_mut(mid);
        Ok((SubBlockMut { bytes: low, place: left }, SubBlockMut { bytes: high, place: right }))
    }
}
