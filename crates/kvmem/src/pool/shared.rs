//! *Shared pools*: other processes attach their memory.
//!
//! The memory is a file without a name and of sealed size. Its descriptor passes from process to
//! process by a socket or by inheritance. After that, three plain numbers name a block
//! ([`BlockRef`]). One process reads what the other writes, without a copy or a request. If either
//! process dies, the other goes on: the memory is released with the last process that has it.
//!
//! Only the process that has built the pool allocates blocks, and it alone knows which are in use:
//! a reference says where bytes are, not that they are unchanged. A process that passes a reference
//! keeps the block until the other has said that it is done.

use std::os::fd::OwnedFd;
use std::slice;

use super::{BlockRef, Pool, PoolError};
use crate::arena::{Populate, ProgressOptions, ReadOnlyRegion, Region};
use crate::trace::span;

impl Pool {
    /// Returns a descriptor of the pool's memory with which another process can attach it to read
    /// and write.
    ///
    /// # Errors
    /// [`PoolError::Private`]; [`PoolError::Memory`] if the process has no free descriptor.
    ///
    /// # Safety
    /// The receiver writes to the bytes of a block only while no thread uses a slice of them that
    /// [`Block::bytes`](super::Block::bytes) or [`Block::bytes_mut`](super::Block::bytes_mut)
    /// returned, and to no other bytes.
    pub unsafe fn share(&self) -> Result<OwnedFd, PoolError> {
        self.memory.parts()[0].region.share()?.ok_or(PoolError::Private)
    }

    /// Returns a descriptor of the pool's memory with which another process can attach it to read.
    ///
    /// A process of another user cannot write through it: the file's mode is 0644. A process of the
    /// same user, or of root, can deliberately open `/proc/self/fd/N` for writing, unless the pool
    /// is for [readers only](super::PoolBuilder::readers_only). It can write to `/proc/PID/mem` in
    /// any case.
    ///
    /// # Errors
    /// [`PoolError::Private`]; [`PoolError::Memory`] if the process has no free descriptor, `/proc`
    /// is not mounted, or the file's mode cannot be set.
    pub fn share_read_only(&self) -> Result<OwnedFd, PoolError> {
        self.memory.parts()[0].region.share_read_only()?.ok_or(PoolError::Private)
    }

    /// Makes the pool's pages resident in all other mappings of its memory in this process, such as
    /// those of an engine that received the descriptor. See [`Region::populate_aliases`]. Returns
    /// the total length of those mappings in bytes.
    ///
    /// # Errors
    /// [`PoolError::Private`]; [`PoolError::Memory`].
    pub fn populate_aliases(
        &self,
        how: Populate,
        options: &ProgressOptions,
    ) -> Result<u64, PoolError> {
        let first = &self.memory.parts()[0].region;
        first.fd().ok_or(PoolError::Private)?;
        Ok(first.populate_aliases(how, options)?)
    }

    /// Returns the number by which references name this pool; `None`: its memory is private.
    #[must_use]
    pub fn share_id(&self) -> Option<u64> {
        Some(self.memory.number()).filter(|number| *number != 0)
    }
}

/// The access of this process to a pool of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// This process reads the bytes.
    ReadOnly,
    /// This process reads and writes the bytes.
    ReadWrite,
}

/// The memory of a pool of another process. `Send + Sync`. The memory stays mapped until this is
/// dropped, also if the other process ends.
///
/// ```
/// use kvmem::arena::{Backing, PageSize};
/// use kvmem::pool::{Access, AttachedPool, BlockRef, Pool};
///
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).backing(Backing::Shared).build()?;
/// let mut block = pool.allocate(5)?;
/// block.bytes_mut().copy_from_slice(b"bytes");
/// let bits = block.reference()?.to_bits();
/// let fd = pool.share_read_only()?;
///
/// // In another process, which got the descriptor over a socket and then the bits:
/// let seen = AttachedPool::attach(fd, Access::ReadOnly)?;
/// // SAFETY: no process writes to the block meanwhile.
/// assert_eq!(unsafe { seen.bytes(BlockRef::from_bits(bits)) }?, b"bytes");
/// # Ok::<(), kvmem::pool::PoolError>(())
/// ```
#[derive(Debug)]
pub struct AttachedPool {
    memory: Attached,
    number: u64,
}

#[derive(Debug)]
enum Attached {
    ReadOnly(ReadOnlyRegion),
    ReadWrite(Region),
}

impl AttachedPool {
    /// Maps the memory of a pool. `fd` is the descriptor that [`Pool::share`] or
    /// [`Pool::share_read_only`] returned in the other process.
    ///
    /// # Errors
    /// Those of [`Region::attach`]. A file whose size is not sealed fails, since touching a page
    /// behind its end would kill this process.
    pub fn attach(fd: impl Into<OwnedFd>, access: Access) -> Result<AttachedPool, PoolError> {
        span!(INFO, "attach", ?access);
        let (memory, number) = match access {
            Access::ReadOnly => {
                let region = ReadOnlyRegion::attach(fd, None)?;
                let number = region.file_number()?;
                (Attached::ReadOnly(region), number)
            }
            Access::ReadWrite => {
                let region = Region::attach(fd, None)?;
                let number = region.file_number()?;
                (Attached::ReadWrite(region), number)
            }
        };
        Ok(AttachedPool { memory, number: number.unwrap_or(0) })
    }

    /// Returns the length of the memory in bytes, in use or free.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match &self.memory {
            Attached::ReadOnly(region) => region.len(),
            Attached::ReadWrite(region) => region.len(),
        }
    }

    /// Returns the number by which references name the pool.
    #[must_use]
    pub fn share_id(&self) -> u64 {
        self.number
    }

    /// Returns the access with which the pool was attached.
    #[must_use]
    pub fn access(&self) -> Access {
        match self.memory {
            Attached::ReadOnly(_) => Access::ReadOnly,
            Attached::ReadWrite(_) => Access::ReadWrite,
        }
    }

    /// Returns the bytes of a block.
    ///
    /// # Errors
    /// [`PoolError::Foreign`]; [`PoolError::OutOfBounds`].
    ///
    /// # Safety
    /// While the result is used, no process and no device writes to these bytes. The process that
    /// owns the block ensures it.
    pub unsafe fn bytes(&self, block: BlockRef) -> Result<&[u8], PoolError> {
        let range = self.range(block)?;
        match &self.memory {
            // SAFETY: no process and no device writes to the bytes while the result is used, as the
            // caller of this function promises, and no function of this type discards them.
            Attached::ReadOnly(region) => Ok(unsafe { region.bytes(range) }?),
            // SAFETY: as above; a thread of this process writes to them only by `bytes_mut`, whose
            // caller promises that no thread reads them meanwhile.
            Attached::ReadWrite(region) => Ok(unsafe { region.slice(range)?.as_bytes() }),
        }
    }

    /// Returns the bytes of a block for writing.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`]; [`PoolError::Foreign`]; [`PoolError::OutOfBounds`].
    ///
    /// # Safety
    /// While the result is used, no other thread, process or device reads or writes these bytes.
    /// The process that owns the block has lent it to this one.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub unsafe fn bytes_mut(&self, block: BlockRef) -> Result<&mut [u8], PoolError> {
        let range = self.range(block)?;
        let Attached::ReadWrite(region) = &self.memory else { return Err(PoolError::ReadOnly) };
        let bytes = region.slice(range)?;
        // SAFETY: the slice lies in the region, which is mapped for reading and writing while
        // `self` is borrowed. Its bytes have values: those of the file, or zeros. No thread,
        // process or device uses them while the result is used, as the caller of this function
        // promises.
        Ok(unsafe { slice::from_raw_parts_mut(bytes.as_ptr(), bytes.len()) })
    }

    fn range(&self, block: BlockRef) -> Result<std::ops::Range<usize>, PoolError> {
        let BlockRef { pool, offset, len } = block;
        if pool != self.number {
            return Err(PoolError::Foreign { of: pool, here: self.number });
        }
        let all = self.len() as u64;
        match offset.checked_add(len) {
            Some(end) if end <= all => Ok(offset as usize..end as usize),
            end => Err(PoolError::OutOfBounds { range: offset..end.unwrap_or(u64::MAX), len: all }),
        }
    }
}
