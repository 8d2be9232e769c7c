//! *Region*: one contiguous range of memory, or a part of one.

use std::any::Any;
use std::fs::File;
use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use super::diagnose::refused;
use super::hold::Hold;
use super::lay::{Laid, Piece, shield};
use super::mapping::{self, Mapping, outward};
use super::numa::nodes_found;
use super::populate::{Part, Populated, populate};
use super::residency::{Residency, glance, measure};
use super::{
    ArenaError, Backing, Call, Numa, PageSize, Populate, ProgressOptions, Receipt, RegionBuilder,
    file, lay,
};
use crate::sys;

/// One contiguous range of memory: mapped, placed, and as resident as it was made.
///
/// ```text
///  Region ──┐
///  Region ──┼─Arc──▶ Mapping ──▶ pages, receipt
///  Region ──┘          unmapped with the last of them
/// ```
///
/// A region made by [`split_at`](Region::split_at) is a part of a mapping and shares it with the
/// other parts: the memory goes when the last of them is dropped. Offsets are always counted from
/// the beginning of the region at hand.
///
/// The bytes are reached by address. Rust's references promise that nobody else writes meanwhile;
/// devices, other processes and other threads can break that promise, so the plain slices are
/// `unsafe` to make, but for [`as_mut_bytes`](Region::as_mut_bytes).
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl Region {
    /// A region of at least `size_bytes` bytes, to be described further and then mapped.
    pub fn builder(size_bytes: usize) -> RegionBuilder {
        RegionBuilder::new(size_bytes)
    }

    pub(crate) fn whole(mapping: Mapping) -> Region {
        let len = mapping.len();
        Region { mapping: Arc::new(mapping), start: 0, len }
    }

    /// Maps the memory of another process: `fd` is a duplicate of what its [`fd`](Region::fd) gave,
    /// sent over a socket or inherited. If `expected_bytes` is given, the file must have that
    /// size.
    ///
    /// The region keeps the descriptor. It is kept out of children and core dumps. It consists of
    /// the pages that the file is made of; a file of transparent hugepages cannot be told from
    /// one of base pages before it is looked at, so the receipt says base pages and how many
    /// bytes are in hugepages.
    ///
    /// # Errors
    /// [`NotMemory`](ArenaError::NotMemory), [`Unsealed`](ArenaError::Unsealed),
    /// [`WrongSize`](ArenaError::WrongSize), and what mapping can fail with. The descriptor is
    /// closed then.
    pub fn attach(
        fd: impl Into<OwnedFd>,
        expected_bytes: Option<usize>,
    ) -> Result<Region, ArenaError> {
        Region::map_file(File::from(fd.into()), expected_bytes, true)
    }

    /// As [`attach`](Self::attach), to be written or only read.
    pub(super) fn map_file(
        file: File,
        expected_bytes: Option<usize>,
        write: bool,
    ) -> Result<Region, ArenaError> {
        let (len, page) = file::inspect(&file, expected_bytes)?;
        let span = lay::map_whole(&file, len, page, false, write)?;
        shield(&span, true, true)?;
        let piece = Piece {
            range: 0..len,
            requested: page,
            got: page,
            fallbacks: Vec::new(),
            by_collapse: false,
        };
        let laid = Laid { span, pieces: vec![piece], file: Some(file), policy_verified: false };
        let receipt = Receipt {
            requested_bytes: expected_bytes.unwrap_or(len),
            mapped_bytes: laid.span.outer_len(),
            usable_bytes: len,
            backing: Some(Backing::Shared),
            policy_verified: false,
            threads: 0,
            ranges: mapping::ranges(&laid),
        };
        Ok(Region::whole(Mapping::own(laid, Backing::Shared, Numa::None, receipt)))
    }

    /// A region over memory that was made elsewhere: a tensor's bytes, another library's buffer.
    /// `owner` is dropped when the last part of the region is, and not before.
    ///
    /// The address need not be on a page boundary. What changes the memory or its pages
    /// ([`discard`](Region::discard), [`advise`](Region::advise)) is refused: that is up to its
    /// owner.
    ///
    /// # Errors
    /// [`ZeroSize`](ArenaError::ZeroSize), [`TooLarge`](ArenaError::TooLarge).
    ///
    /// # Safety
    /// The `len` bytes at `ptr` are one allocation, mapped for reading and writing, and stay so
    /// until `owner` is dropped. They may be used from any thread. Until then nobody holds a
    /// plain reference to them, except through this region and under the conditions of its
    /// methods.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Region, ArenaError> {
        let most = isize::MAX as usize - ptr.addr().get().min(isize::MAX as usize);
        match len {
            0 => Err(ArenaError::ZeroSize),
            len if len > most => Err(ArenaError::TooLarge { requested: len, most }),
            len => Ok(Region::whole(Mapping::foreign(ptr, len, Box::new(owner)))),
        }
    }

    /// The first address.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: a region is a part of its mapping.
        unsafe { self.mapping.base().add(self.start) }
    }

    /// Bytes that may be used: what was asked for, in whole pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all; only a part can be so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that were asked for, of the whole mapping.
    #[must_use]
    pub fn requested(&self) -> usize {
        self.receipt().requested_bytes
    }

    /// Bytes of addresses held by the whole mapping, guard pages included.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.receipt().mapped_bytes
    }

    /// What the whole mapping is made of, as it was found when it was mapped. It does not change;
    /// what is resident now is said by [`residency`](Region::residency).
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        self.mapping.receipt()
    }

    /// The receipt of when the mapping was made, with what is resident now.
    ///
    /// # Errors
    /// As for [`residency`](Region::residency); [`OutOfBounds`](ArenaError::OutOfBounds) of a part
    /// that was split off.
    pub fn receipt_now(&self) -> Result<Receipt, ArenaError> {
        let mut receipt = self.receipt().clone();
        for part in &mut receipt.ranges {
            let found = self.residency(part.range.clone())?;
            part.resident_bytes = found.resident_bytes;
            part.resident_error_bytes = found.error_bytes;
            part.huge_bytes = found.huge_bytes;
        }
        Ok(receipt)
    }

    /// Where this region begins within its mapping, in bytes: what to add to its offsets to compare
    /// them with the receipt's.
    #[must_use]
    pub fn start_in_mapping(&self) -> usize {
        self.start
    }

    /// The kind of pages at an offset; `None` beyond the end.
    #[must_use]
    pub fn page_at(&self, offset: usize) -> Option<PageSize> {
        self.pieces(offset..offset.checked_add(1)?).next().map(|(piece, _)| piece.got)
    }

    /// The descriptor of the memory file behind a shared region, which another process can attach.
    /// Sealed: nobody can change its size.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file().map(AsFd::as_fd)
    }

    /// A duplicate of [`fd`](Region::fd), to be sent away; `None` if there is none.
    ///
    /// # Errors
    /// [`Refused`](ArenaError::Refused) if the process has no descriptor left.
    pub fn share(&self) -> Result<Option<OwnedFd>, ArenaError> {
        let duplicate =
            |fd| sys::duplicate(fd).map_err(|errno| refused(Call::Duplicate, self.len, errno));
        self.fd().map(duplicate).transpose()
    }

    /// A descriptor like [`fd`](Region::fd), by which the memory can be read and not written
    /// ([`ReadOnlyRegion::attach`](super::ReadOnlyRegion::attach)), to be sent away; `None` if
    /// there is none. Goes by way of `/proc`.
    ///
    /// A process of another user cannot open the memory for writing by it: the file's mode is 0644.
    /// A process of the same user, or of root, can, by `/proc/self/fd`, unless the region is for
    /// [readers only](RegionBuilder::readers_only); those can reach the memory of this process by
    /// other ways, too.
    ///
    /// # Errors
    /// [`Refused`](ArenaError::Refused) if the process has no descriptor left, `/proc` is not
    /// mounted, or the file was made by another user, who lets everybody write.
    #[cfg(not(loom))]
    pub fn share_read_only(&self) -> Result<Option<OwnedFd>, ArenaError> {
        let Some(file) = self.mapping.file() else { return Ok(None) };
        file::forbid_writers(file, self.len)?;
        let again = sys::reopen_read_only(file.as_fd());
        again.map(Some).map_err(|errno| refused(Call::Reopen, self.len, errno))
    }

    /// The number of the memory file: the same in every process, and that of no other memory file
    /// as long as this one is there.
    #[cfg(not(loom))]
    pub(crate) fn file_number(&self) -> Result<Option<u64>, ArenaError> {
        let number =
            |file| sys::file_number(file).map_err(|errno| refused(Call::FileSize, self.len, errno));
        self.mapping.file().map(number).transpose()
    }

    /// Two regions, `[0, mid)` and `[mid, len)`, that share the mapping. It goes when both are
    /// gone.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds) if `mid` is beyond the end; the region is dropped
    /// then.
    pub fn split_at(self, mid: usize) -> Result<(Region, Region), ArenaError> {
        if mid > self.len {
            return Err(ArenaError::OutOfBounds { start: mid, end: mid, len: self.len });
        }
        let right = Region {
            mapping: Arc::clone(&self.mapping),
            start: self.start + mid,
            len: self.len - mid,
        };
        Ok((Region { len: mid, ..self }, right))
    }

    /// Regions of `part_bytes` bytes each that share the mapping; the last one is shorter if it
    /// does not come out even.
    ///
    /// # Errors
    /// [`ZeroSize`](ArenaError::ZeroSize) if the parts would be empty.
    pub fn split(self, part_bytes: usize) -> Result<Vec<Region>, ArenaError> {
        if part_bytes == 0 {
            return Err(ArenaError::ZeroSize);
        }
        let part = |from: usize| Region {
            mapping: Arc::clone(&self.mapping),
            start: self.start + from,
            len: part_bytes.min(self.len - from),
        };
        Ok((0..self.len).step_by(part_bytes).map(part).collect())
    }

    /// Makes a range resident and writable, without changing a byte of it, by as many threads as
    /// `how` says.
    ///
    /// # Errors
    /// [`ArenaError`] as when mapping. The region stands then, and what was made resident stays so.
    pub fn populate(
        &self,
        range: impl RangeBounds<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        let range = self.resolve(range)?;
        let parts: Vec<Part> = self
            .pieces(range.clone())
            .map(|(piece, within)| {
                // SAFETY: the offset is within the region.
                let at = unsafe { self.base().add(within.start) };
                let (at, len) = outward(at, within.len());
                Part {
                    at,
                    range: within.start..within.start + len,
                    page: piece.got,
                    by_collapse: piece.by_collapse,
                }
            })
            .collect();
        let resident = |part: &Part| match measure(part.at, part.range.len()) {
            Ok(found) if !part.page.is_pooled() => {
                found.resident_bytes.saturating_sub(found.error_bytes)
            }
            _ => 0,
        };
        let start = Instant::now();
        let done = populate(&parts, how, watch, parts.iter().map(resident).sum())?;
        let seconds = start.elapsed().as_secs_f64();
        for part in &parts {
            // What the kernel does not say cannot be held against it.
            let nodes =
                nodes_found(part.at, part.range.len(), sys::page_size()).unwrap_or_default();
            self.mapping.numa().verify(&part.range, &nodes)?;
        }
        Ok(Populated {
            bytes: if done.is_empty() { 0 } else { range.len() as u64 },
            seconds,
            threads: done.iter().map(|done| done.threads).max().unwrap_or(0),
        })
    }

    /// How much of a range is resident now.
    ///
    /// Exact where the kernel can scan page tables (Linux 6.7), else for up to a million pages,
    /// else sampled with the error that the answer states.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds), and [`Refused`](ArenaError::Refused) if no way of
    /// asking is open.
    pub fn residency(&self, range: impl RangeBounds<usize>) -> Result<Residency, ArenaError> {
        let range = self.resolve(range)?;
        // SAFETY: the offset is within the region.
        let (at, len) = outward(unsafe { self.base().add(range.start) }, range.len());
        measure(at, len).map_err(|errno| refused(Call::Mincore, len, errno))
    }

    /// Whether every page of a range is resident, or every one that was asked: see
    /// [`residency`](Region::residency).
    ///
    /// # Errors
    /// As for [`residency`](Region::residency).
    pub fn is_resident(&self, range: impl RangeBounds<usize>) -> Result<bool, ArenaError> {
        self.residency(range).map(|found| found.is_whole())
    }

    /// About how many bytes of a range are resident, in some microseconds: what the receipt says,
    /// if it says all, else from a sample of up to 64 pages.
    pub(crate) fn glance(&self, range: Range<usize>) -> Result<u64, ArenaError> {
        if self.mapping.was_populated(&(range.start + self.start..range.end + self.start)) {
            return Ok(range.len() as u64);
        }
        // SAFETY: the offset is within the region.
        let (at, len) = outward(unsafe { self.base().add(range.start) }, range.len());
        let found = glance(at, len).map_err(|errno| refused(Call::Mincore, len, errno))?;
        Ok(found.min(range.len() as u64))
    }

    /// Promises that the pages stay where they are until the promise is dropped.
    pub(crate) fn hold(&self) -> Hold {
        Hold::new(&self.mapping, self.start..self.start + self.len)
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The pieces in a range, each with its part of the range.
    pub(crate) fn pieces(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (&Piece, Range<usize>)> {
        let start = self.start;
        let range = range.start.min(self.len)..range.end.min(self.len);
        self.mapping
            .pieces_in(range.start + start..range.end + start)
            .map(move |(piece, part)| (piece, part.start - start..part.end - start))
    }

    /// A range as plain offsets, if it lies within the region.
    pub(crate) fn resolve(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<Range<usize>, ArenaError> {
        let start = match range.start_bound() {
            Bound::Included(start) => Some(*start),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => Some(self.len),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= self.len => Ok(start..end),
            (start, end) => Err(ArenaError::OutOfBounds {
                start: start.unwrap_or(usize::MAX),
                end: end.unwrap_or(usize::MAX),
                len: self.len,
            }),
        }
    }
}
