//! *Sharing*: descriptors of a region's memory file, and regions of another process's file.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::backing::Backing;
use super::map::{MappedSpan, Mapping, Segment, map_whole, memfd, shield, survey};
use super::receipt::Receipt;
use super::region::Region;
use crate::arena::error::call_failed;
use crate::arena::{ArenaError, Call, Numa, PageSize};
use crate::sys;

impl Region {
    /// Maps the memory of another process: `fd` is a duplicate of the descriptor that its
    /// [`fd`](Region::fd) returned, sent over a socket or inherited. With `expected_bytes`,
    /// the file must have that size.
    ///
    /// The region keeps the descriptor. Forked children and core dumps omit it. It consists of the
    /// file's pages. A file of transparent hugepages looks like one of base pages until its
    /// residency is measured, so the receipt says base pages, and how many bytes are in hugepages.
    ///
    /// # Errors
    /// [`NotMemory`](ArenaError::NotMemory), [`Unsealed`](ArenaError::Unsealed),
    /// [`WrongSize`](ArenaError::WrongSize), and the errors of mapping. The descriptor is closed
    /// then.
    pub fn attach(
        fd: impl Into<OwnedFd>,
        expected_bytes: Option<usize>,
    ) -> Result<Region, ArenaError> {
        let file = File::from(fd.into());
        memfd::check_is_sealed_memory(&file, false)?;
        Region::map_file(file, expected_bytes, true)
    }

    /// Maps the first `len` bytes of the memory of another process, whose file may be longer or
    /// [become](crate::arena::RegionBuilder::growable) so, as [`attach`](Self::attach) maps all.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach); [`WrongSize`](ArenaError::WrongSize) for a shorter file.
    pub fn attach_front(fd: impl Into<OwnedFd>, len: usize) -> Result<Region, ArenaError> {
        Region::map_front(fd.into().into(), len, true)
    }

    /// Maps the front of a memory file, for writing or only for reading.
    pub(super) fn map_front(file: File, len: usize, write: bool) -> Result<Region, ArenaError> {
        memfd::check_is_sealed_memory(&file, true)?;
        let (found, page) = memfd::inspect(&file, None)?;
        if found < len || !len.is_multiple_of(page.bytes()) || len == 0 {
            let (found, expected) = (found as u64, len as u64);
            return Err(ArenaError::WrongSize { found, expected });
        }
        Region::map_part(file, len, page, write)
    }

    /// Maps a memory file, for writing or only for reading.
    pub(super) fn map_file(
        file: File,
        expected_bytes: Option<usize>,
        write: bool,
    ) -> Result<Region, ArenaError> {
        let (len, page) = memfd::inspect(&file, expected_bytes)?;
        Region::map_part(file, len, page, write)
    }

    fn map_part(file: File, len: usize, page: PageSize, write: bool) -> Result<Region, ArenaError> {
        let span = map_whole(&file, len, page, false, write)?;
        shield(&span, true, true)?;
        let segment = Segment {
            range: 0..len,
            requested: page,
            obtained: page,
            fallbacks: Vec::new(),
            by_collapse: false,
        };
        let mapped =
            MappedSpan { span, segments: vec![segment], file: Some(file), policy_verified: false };
        let receipt = Receipt {
            requested_bytes: len,
            mapped_bytes: mapped.span.outer_len(),
            usable_bytes: len,
            backing: Some(Backing::Shared),
            policy_verified: false,
            threads: 0,
            ranges: survey::ranges(&mapped),
        };
        Ok(Region::whole(Mapping::from_span(mapped, Backing::Shared, Numa::None, receipt)))
    }

    /// Returns the descriptor of the memory file behind a shared region, which another process can
    /// attach. Its seals fix the size of the file.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping().file().map(AsFd::as_fd)
    }

    /// Duplicates [`fd`](Region::fd) for sending; returns `None` if there is none.
    ///
    /// # Errors
    /// [`CallFailed`](ArenaError::CallFailed) if the process has no free descriptor.
    pub fn share(&self) -> Result<Option<OwnedFd>, ArenaError> {
        let duplicate = |fd| {
            sys::duplicate(fd).map_err(|errno| call_failed(Call::Duplicate, self.len(), errno))
        };
        self.fd().map(duplicate).transpose()
    }

    /// Opens a read-only descriptor of the memory file for sending
    /// ([`ReadOnlyRegion::attach`](crate::arena::ReadOnlyRegion::attach)); returns `None` if there
    /// is no file. Uses `/proc`.
    ///
    /// A process of another user cannot open the memory for writing through it: the mode of the
    /// file is 0644. A process of the same user, or of root,
    /// can do so through `/proc/self/fd`, unless the region is for [readers
    /// only](crate::arena::RegionBuilder::readers_only). Such processes can also reach the memory
    /// of this process in other ways.
    ///
    /// # Errors
    /// [`CallFailed`](ArenaError::CallFailed) if the process has no free descriptor, `/proc` is not
    /// mounted, or the file was made by another user and is writable for all.
    pub fn share_read_only(&self) -> Result<Option<OwnedFd>, ArenaError> {
        let Some(file) = self.mapping().file() else { return Ok(None) };
        memfd::forbid_writers(file, self.len())?;
        let again = sys::reopen_read_only(file.as_fd());
        again.map(Some).map_err(|errno| call_failed(Call::Reopen, self.len(), errno))
    }

    /// Returns the inode number of the memory file: the same in every process, and unique among all
    /// memory files that exist at the same time.
    pub(crate) fn file_number(&self) -> Result<Option<u64>, ArenaError> {
        let number = |file| {
            sys::file_number(file).map_err(|errno| call_failed(Call::FileSize, self.len(), errno))
        };
        self.mapping().file().map(number).transpose()
    }
}
