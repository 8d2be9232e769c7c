//! *Read-only region*: memory of another process, mapped for reading.

use std::fs::File;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;

use super::map::memfd;
use super::region::Region;
use crate::arena::ArenaError;

/// The memory of another process, mapped read-only.
///
/// It has no operations that change pages, and cannot be registered: a device could write to
/// registered memory.
///
/// ```
/// use kvmem::arena::{Backing, PageSize, ReadOnlyRegion, Region};
///
/// let builder = Region::builder(1 << 20).ladder(PageSize::Base).backing(Backing::Shared);
/// let region = builder.map()?;
/// let fd = region.share_read_only()?.expect("shared memory has a descriptor");
/// // In another process, which received the descriptor over a socket:
/// let seen = ReadOnlyRegion::attach(fd, Some(1 << 20))?;
/// // SAFETY: no thread writes meanwhile.
/// assert_eq!(unsafe { seen.bytes(..16) }?, [0; 16]);
/// # Ok::<(), kvmem::arena::ArenaError>(())
/// ```
#[derive(Debug)]
pub struct ReadOnlyRegion(Region);

impl ReadOnlyRegion {
    /// Maps the memory of another process: `fd` comes from that process's
    /// [`share_read_only`](Region::share_read_only) or [`share`](Region::share).
    ///
    /// # Errors
    /// [`NotMemory`](ArenaError::NotMemory), [`Unsealed`](ArenaError::Unsealed),
    /// [`WrongSize`](ArenaError::WrongSize), and the errors of mapping. The descriptor is closed
    /// then.
    pub fn attach(
        fd: impl Into<OwnedFd>,
        expected_bytes: Option<usize>,
    ) -> Result<Self, ArenaError> {
        let file = File::from(fd.into());
        memfd::check_is_sealed_memory(&file, false)?;
        Region::map_file(file, expected_bytes, false).map(ReadOnlyRegion)
    }

    /// Maps the first `len` bytes of a file that may be longer, as [`Region::attach_front`].
    ///
    /// # Errors
    /// Those of [`Region::attach_front`].
    pub fn attach_front(fd: impl Into<OwnedFd>, len: usize) -> Result<Self, ArenaError> {
        Region::map_front(fd.into().into(), len, false).map(ReadOnlyRegion)
    }

    /// Closes the descriptor of the memory file. The memory stays mapped, and the mapping alone
    /// keeps the open file, with the locks of its description: until this process unmaps it,
    /// executes another program or ends. A forked child has neither the descriptor nor the mapping.
    pub fn close_descriptor(&mut self) {
        // A read-only region has no parts, so nothing shares its mapping.
        if let Some(mapping) = self.0.mapping_mut() {
            mapping.close_file();
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the region has no bytes, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of a range.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds) if the range is not within the region.
    ///
    /// # Safety
    /// While the result is used, no process and no device writes to these bytes, and no thread
    /// discards them.
    pub unsafe fn bytes(&self, range: impl RangeBounds<usize>) -> Result<&[u8], ArenaError> {
        // SAFETY: this function's condition excludes writes and discards while the result is used,
        // which is the condition of `as_bytes`. The mapping lives as long as the borrow of `self`.
        self.0.slice(range).map(|slice| unsafe { slice.as_bytes() })
    }

    pub(crate) fn file_number(&self) -> Result<Option<u64>, ArenaError> {
        self.0.file_number()
    }
}
