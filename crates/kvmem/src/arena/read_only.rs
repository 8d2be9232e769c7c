//! *Read-only region*: another process's memory, to be looked at.

use std::fs::File;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;

use super::{ArenaError, Region};

/// The memory of another process, mapped so that it cannot be written.
///
/// It has none of a [`Region`]'s ways to change pages, nor can it be registered: devices are given
/// what they may write.
///
/// ```
/// use kvmem::arena::{PageSize, ReadOnlyRegion, Region};
///
/// let region = Region::builder(1 << 20).ladder(PageSize::Base).memfd(true).map()?;
/// let fd = region.share_read_only()?.expect("shared memory has one");
/// // Elsewhere, in a process that got the descriptor over a socket:
/// let seen = ReadOnlyRegion::attach(fd, Some(1 << 20))?;
/// // SAFETY: nobody writes meanwhile.
/// assert_eq!(unsafe { seen.bytes(..16) }?, [0; 16]);
/// # Ok::<(), kvmem::arena::ArenaError>(())
/// ```
#[derive(Debug)]
pub struct ReadOnlyRegion(Region);

impl ReadOnlyRegion {
    /// Maps the memory of another process: `fd` is what its
    /// [`share_read_only`](Region::share_read_only) or [`share`](Region::share) gave.
    ///
    /// # Errors
    /// As [`Region::attach`].
    pub fn attach(
        fd: impl Into<OwnedFd>,
        expected_bytes: Option<usize>,
    ) -> Result<Self, ArenaError> {
        Region::map_file(File::from(fd.into()), expected_bytes, false).map(ReadOnlyRegion)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of a range.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds).
    ///
    /// # Safety
    /// While the result is used nobody writes to these bytes: no process and no device. Nobody
    /// discards them.
    pub unsafe fn bytes(&self, range: impl RangeBounds<usize>) -> Result<&[u8], ArenaError> {
        // SAFETY: the caller's promise.
        self.0.slice(range).map(|slice| unsafe { slice.as_bytes() })
    }

    pub(crate) fn file_number(&self) -> Result<Option<u64>, ArenaError> {
        self.0.file_number()
    }
}
