//! *Region*: one contiguous range of memory, or a part of one.

use std::any::Any;
use std::fs::File;
use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use super::builder::{Backing, RegionBuilder};
use super::map::{
    MappedSpan, Mapping, PinnedRange, Segment, map_whole, mapping, memfd, outward, shield,
};
use super::receipt::Receipt;
use crate::arena::error::call_failed;
use crate::arena::pages::nodes_found;
use crate::arena::populate::{PopulateRange, glance, measure, populate};
use crate::arena::{
    ArenaError, Call, Numa, PageSize, Populate, Populated, ProgressOptions, Residency,
};
use crate::sys;

/// One contiguous range of mapped memory, with its placement and its residency.
///
/// ```text
///  Region ──┐
///  Region ──┼─Arc──▶ Mapping ──▶ pages, receipt
///  Region ──┘          unmapped with the last region
/// ```
///
/// A region made by [`split_at`](Region::split_at) is a part of a mapping and shares it with the
/// other parts. The memory is unmapped when the last part is dropped. Offsets count from the
/// beginning of the region itself.
///
/// The bytes are accessed by address. A Rust reference promises that no other code writes
/// meanwhile. Devices, other processes and other threads can break that promise, so making a plain
/// slice is `unsafe`, except by [`as_mut_bytes`](Region::as_mut_bytes).
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl Region {
    /// Starts the description of a region of at least `size_bytes` bytes.
    pub fn builder(size_bytes: usize) -> RegionBuilder {
        RegionBuilder::new(size_bytes)
    }

    pub(crate) fn whole(mapping: Mapping) -> Region {
        let len = mapping.len();
        Region { mapping: Arc::new(mapping), start: 0, len }
    }

    /// Maps the memory of another process: `fd` is a duplicate of the descriptor that its
    /// [`fd`](Region::fd) returned, sent over a socket or inherited. If `expected_bytes` is given,
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
        Region::map_file(File::from(fd.into()), expected_bytes, true)
    }

    /// Maps a memory file like [`attach`](Self::attach), for writing or only for reading.
    pub(super) fn map_file(
        file: File,
        expected_bytes: Option<usize>,
        write: bool,
    ) -> Result<Region, ArenaError> {
        let (len, page) = memfd::inspect(&file, expected_bytes)?;
        let span = map_whole(&file, len, page, false, write)?;
        shield(&span, true, true)?;
        let segment = Segment {
            range: 0..len,
            requested: page,
            got: page,
            fallbacks: Vec::new(),
            by_collapse: false,
        };
        let mapped =
            MappedSpan { span, segments: vec![segment], file: Some(file), policy_verified: false };
        let receipt = Receipt {
            requested_bytes: expected_bytes.unwrap_or(len),
            mapped_bytes: mapped.span.outer_len(),
            usable_bytes: len,
            backing: Some(Backing::Shared),
            policy_verified: false,
            threads: 0,
            ranges: mapping::ranges(&mapped),
        };
        Ok(Region::whole(Mapping::from_span(mapped, Backing::Shared, Numa::None, receipt)))
    }

    /// Makes a region over existing memory: a tensor's bytes, or another library's buffer. `owner`
    /// is dropped after the last part of the region.
    ///
    /// The address need not be on a page boundary. Operations that change the memory or its pages
    /// ([`discard`](Region::discard), [`advise`](Region::advise)) return
    /// [`Foreign`](ArenaError::Foreign): only the owner may do that.
    ///
    /// # Errors
    /// [`ZeroSize`](ArenaError::ZeroSize) if `len` is 0, [`TooLarge`](ArenaError::TooLarge) if the
    /// range exceeds the address space.
    ///
    /// # Safety
    /// The `len` bytes at `ptr` are one allocation, mapped for reading and writing, and stay so
    /// until `owner` is dropped. Any thread may use them. Until then no code has a plain reference
    /// to them, except through this region and under the conditions of its methods.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Region, ArenaError> {
        let max = isize::MAX as usize - ptr.addr().get().min(isize::MAX as usize);
        match len {
            0 => Err(ArenaError::ZeroSize),
            len if len > max => Err(ArenaError::TooLarge { requested: len, most: max }),
            len => Ok(Region::whole(Mapping::from_owner(ptr, len, Box::new(owner)))),
        }
    }

    /// Returns the first address.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: a region lies within its mapping.
        unsafe { self.mapping.base().add(self.start) }
    }

    /// Returns the usable bytes: the requested bytes in whole pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes, which is possible only for a part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the requested bytes of the whole mapping.
    #[must_use]
    pub fn requested(&self) -> usize {
        self.receipt().requested_bytes
    }

    /// Returns the bytes of addresses of the whole mapping, guard pages included.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.receipt().mapped_bytes
    }

    /// Returns the composition of the whole mapping, as found when it was mapped. It does not
    /// change; [`residency`](Region::residency) measures the current state.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        self.mapping.receipt()
    }

    /// Returns the receipt with the current residency.
    ///
    /// # Errors
    /// The errors of [`residency`](Region::residency); [`OutOfBounds`](ArenaError::OutOfBounds) for
    /// a part that was split off.
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

    /// Returns the offset of this region within its mapping, in bytes. Add it to offsets of this
    /// region to compare them with the receipt's.
    #[must_use]
    pub fn start_in_mapping(&self) -> usize {
        self.start
    }

    /// Returns the kind of page at an offset; `None` beyond the end.
    #[must_use]
    pub fn page_at(&self, offset: usize) -> Option<PageSize> {
        self.segments(offset..offset.checked_add(1)?).next().map(|(segment, _)| segment.got)
    }

    /// Returns the descriptor of the memory file behind a shared region, which another process can
    /// attach. Its seals fix the size of the file.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file().map(AsFd::as_fd)
    }

    /// Duplicates [`fd`](Region::fd) for sending; returns `None` if there is none.
    ///
    /// # Errors
    /// [`CallFailed`](ArenaError::CallFailed) if the process has no free descriptor.
    pub fn share(&self) -> Result<Option<OwnedFd>, ArenaError> {
        let duplicate =
            |fd| sys::duplicate(fd).map_err(|errno| call_failed(Call::Duplicate, self.len, errno));
        self.fd().map(duplicate).transpose()
    }

    /// Opens a read-only descriptor of the memory file for sending
    /// ([`ReadOnlyRegion::attach`](crate::arena::ReadOnlyRegion::attach)); returns `None` if there is no
    /// file. Uses `/proc`.
    ///
    /// A process of another user cannot open the memory for writing through it: the mode of the
    /// file is 0644. A process of the same user, or of root, can do so through `/proc/self/fd`,
    /// unless the region is for [readers only](RegionBuilder::readers_only). Such processes can
    /// also reach the memory of this process in other ways.
    ///
    /// # Errors
    /// [`CallFailed`](ArenaError::CallFailed) if the process has no free descriptor, `/proc` is not
    /// mounted, or the file was made by another user and is writable for all.
    #[cfg(not(loom))]
    pub fn share_read_only(&self) -> Result<Option<OwnedFd>, ArenaError> {
        let Some(file) = self.mapping.file() else { return Ok(None) };
        memfd::forbid_writers(file, self.len)?;
        let again = sys::reopen_read_only(file.as_fd());
        again.map(Some).map_err(|errno| call_failed(Call::Reopen, self.len, errno))
    }

    /// Returns the inode number of the memory file: the same in every process, and unique among all
    /// memory files that exist at the same time.
    #[cfg(not(loom))]
    pub(crate) fn file_number(&self) -> Result<Option<u64>, ArenaError> {
        let number = |file| {
            sys::file_number(file).map_err(|errno| call_failed(Call::FileSize, self.len, errno))
        };
        self.mapping.file().map(number).transpose()
    }

    /// Splits the region into `[0, mid)` and `[mid, len)`, which share the mapping. The mapping
    /// ends with the last of them.
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

    /// Splits the region into regions of `part_bytes` bytes that share the mapping. The last one is
    /// shorter if the length is not a multiple.
    ///
    /// # Errors
    /// [`ZeroSize`](ArenaError::ZeroSize) if `part_bytes` is 0.
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

    /// Makes a range resident and writable without changing a byte, with the number of threads that
    /// `how` selects.
    ///
    /// # Errors
    /// The errors of populating: [`Populate`](ArenaError::Populate),
    /// [`NoHeadroom`](ArenaError::NoHeadroom), [`Cancelled`](ArenaError::Cancelled),
    /// [`OverBudget`](ArenaError::OverBudget), [`Misplaced`](ArenaError::Misplaced); and
    /// [`OutOfBounds`](ArenaError::OutOfBounds). The region remains mapped, and the pages populated
    /// so far stay resident.
    pub fn populate(
        &self,
        range: impl RangeBounds<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        let range = self.resolve(range)?;
        let parts: Vec<PopulateRange> = self
            .segments(range.clone())
            .map(|(segment, within)| {
                // SAFETY: the offset lies within the region.
                let at = unsafe { self.base().add(within.start) };
                let (at, len) = outward(at, within.len());
                PopulateRange {
                    at,
                    range: within.start..within.start + len,
                    page: segment.got,
                    by_collapse: segment.by_collapse,
                }
            })
            .collect();
        let resident = |part: &PopulateRange| match measure(part.at, part.range.len()) {
            Ok(found) if !part.page.is_pooled() => {
                found.resident_bytes.saturating_sub(found.error_bytes)
            }
            _ => 0,
        };
        let start = Instant::now();
        let done = populate(&parts, how, watch, parts.iter().map(resident).sum())?;
        let seconds = start.elapsed().as_secs_f64();
        for part in &parts {
            // Nodes that the kernel does not report are not verified.
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

    /// Measures how much of a range is resident.
    ///
    /// The result is exact where the kernel can scan page tables (Linux 6.7), and elsewhere up to a
    /// million pages. A longer range is sampled; the result states the error.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds) if the range is not within the region, and
    /// [`CallFailed`](ArenaError::CallFailed) if every method fails.
    pub fn residency(&self, range: impl RangeBounds<usize>) -> Result<Residency, ArenaError> {
        let range = self.resolve(range)?;
        // SAFETY: the offset lies within the region.
        let (at, len) = outward(unsafe { self.base().add(range.start) }, range.len());
        measure(at, len).map_err(|errno| call_failed(Call::Mincore, len, errno))
    }

    /// Returns whether every page of a range, or every page of the sample, is resident; see
    /// [`residency`](Region::residency).
    ///
    /// # Errors
    /// The errors of [`residency`](Region::residency).
    pub fn is_resident(&self, range: impl RangeBounds<usize>) -> Result<bool, ArenaError> {
        self.residency(range).map(|found| found.is_whole())
    }

    /// Estimates the resident bytes of a range in some microseconds: from the receipt if the whole
    /// range was populated, otherwise from a sample of up to 64 pages.
    pub(crate) fn glance(&self, range: Range<usize>) -> Result<u64, ArenaError> {
        if self.mapping.was_populated(&(range.start + self.start..range.end + self.start)) {
            return Ok(range.len() as u64);
        }
        // SAFETY: the offset lies within the region.
        let (at, len) = outward(unsafe { self.base().add(range.start) }, range.len());
        let found = glance(at, len).map_err(|errno| call_failed(Call::Mincore, len, errno))?;
        Ok(found.min(range.len() as u64))
    }

    /// Pins the region's pages: they stay where they are until the result is dropped.
    pub(crate) fn pin_pages(&self) -> PinnedRange {
        PinnedRange::new(&self.mapping, self.start..self.start + self.len)
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the segments in a range, each with its part of the range.
    pub(crate) fn segments(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (&Segment, Range<usize>)> {
        let start = self.start;
        let range = range.start.min(self.len)..range.end.min(self.len);
        self.mapping
            .segments_in(range.start + start..range.end + start)
            .map(move |(segment, part)| (segment, part.start - start..part.end - start))
    }

    /// Converts a range to plain offsets, if it lies within the region.
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
