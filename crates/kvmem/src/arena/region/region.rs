//! *Region*: one contiguous range of memory, or a part of one.

use std::any::Any;
use std::ops::{Bound, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use super::map::{Mapping, PinnedRange, Segment};
use super::receipt::Receipt;
use crate::arena::{ArenaError, PageSize};

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
    pub(crate) fn whole(mapping: Mapping) -> Region {
        let len = mapping.len();
        Region { mapping: Arc::new(mapping), start: 0, len }
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
    /// The `len` bytes at `ptr` are one allocation, initialized, mapped for reading and writing,
    /// and stay so until `owner` is dropped. Any thread may use them. Until then no code has a
    /// plain reference to them, except through this region and under the conditions of its methods.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Region, ArenaError> {
        let max = isize::MAX as usize - ptr.addr().get().min(isize::MAX as usize);
        match len {
            0 => Err(ArenaError::ZeroSize),
            len if len > max => Err(ArenaError::TooLarge { requested: len, max }),
            len => Ok(Region::whole(Mapping::from_owner(ptr, len, Box::new(owner)))),
        }
    }

    /// Returns the first address.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: `start + len` is at most the mapping's length, since `whole`, `split_at` and
        // `split` make regions. A mapping is one allocation that lives as long as `self`.
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

    /// Returns the offset of this region within its mapping, in bytes. Add it to offsets of this
    /// region to compare them with the receipt's.
    #[must_use]
    pub fn start_in_mapping(&self) -> usize {
        self.start
    }

    /// Returns the kind of page at an offset; `None` beyond the end.
    #[must_use]
    pub fn page_at(&self, offset: usize) -> Option<PageSize> {
        self.segments(offset..offset.checked_add(1)?).next().map(|(segment, _)| segment.obtained)
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

    /// Pins the region's pages: they stay where they are until the result is dropped.
    pub(crate) fn pin_pages(&self) -> PinnedRange {
        PinnedRange::new(&self.mapping, self.start..self.start + self.len)
    }

    /// Returns a region of the whole mapping, in which this one begins at
    /// [`start_in_mapping`](Region::start_in_mapping).
    pub(crate) fn whole_mapping(&self) -> Region {
        Region { mapping: Arc::clone(&self.mapping), start: 0, len: self.mapping.len() }
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the mapping for a change; `None` if another part of the region shares it.
    pub(crate) fn mapping_mut(&mut self) -> Option<&mut Mapping> {
        Arc::get_mut(&mut self.mapping)
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
