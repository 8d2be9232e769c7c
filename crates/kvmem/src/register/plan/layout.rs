//! *Memory layout*: what a plan needs to know about a region: its address, its pages, and how much
//! of it is resident.

use std::ops::Range;

use crate::arena::{PageSize, Receipt, Region};
use crate::register::{Platform, RegisterError};
use crate::sys;

/// The layout of memory to be registered. Ranges are offsets from its beginning.
#[derive(Clone, Debug)]
pub(in crate::register) struct MemoryLayout {
    /// The first address, exact modulo the size of the largest pages.
    pub(in crate::register) address: usize,
    pub(in crate::register) len: usize,
    /// In order, without gaps.
    pub(in crate::register) segments: Vec<PageSegment>,
}

/// A range of pages of one size.
#[derive(Clone, Debug)]
pub(in crate::register) struct PageSegment {
    pub(in crate::register) range: Range<usize>,
    pub(in crate::register) page: PageSize,
    pub(in crate::register) resident_bytes: u64,
}

impl MemoryLayout {
    /// Returns the layout at the time of mapping. Regions begin on a boundary of their largest
    /// pages.
    pub(in crate::register) fn from_receipt(receipt: &Receipt) -> MemoryLayout {
        let segments = receipt.ranges.iter().map(|part| PageSegment {
            range: part.range.clone(),
            page: part.obtained,
            resident_bytes: part.resident_bytes.min(part.range.len() as u64),
        });
        MemoryLayout { address: 0, len: receipt.usable_bytes, segments: segments.collect() }
    }

    /// Returns the layout with the pages that are resident now.
    pub(in crate::register) fn current(
        region: &Region,
        host: &dyn Platform,
    ) -> Result<MemoryLayout, RegisterError> {
        let segments = region.segments(0..region.len()).map(|(piece, range)| {
            let resident_bytes = host.resident_bytes(region, range.clone())?;
            Ok(PageSegment { range, page: piece.obtained, resident_bytes })
        });
        Ok(MemoryLayout {
            address: region.base().addr().get(),
            len: region.len(),
            segments: segments.collect::<Result<_, RegisterError>>()?,
        })
    }

    pub(in crate::register) fn resident_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.resident_bytes).sum()
    }

    /// Returns the bytes outside of hugetlb pools that are not resident. Pages of a pool are
    /// already reserved.
    pub(in crate::register) fn absent_outside_pools(&self) -> u64 {
        let unpooled = self.segments.iter().filter(|segment| !segment.page.is_pooled());
        unpooled
            .map(|segment| (segment.range.len() as u64).saturating_sub(segment.resident_bytes))
            .sum()
    }

    /// Returns the ranges that are not fully resident; adjacent ones are merged.
    pub(in crate::register) fn absent_ranges(&self) -> Vec<Range<usize>> {
        let mut absent: Vec<Range<usize>> = Vec::new();
        for segment in self
            .segments
            .iter()
            .filter(|segment| segment.resident_bytes < segment.range.len() as u64)
        {
            match absent.last_mut() {
                Some(last) if last.end == segment.range.start => last.end = segment.range.end,
                _ => absent.push(segment.range.clone()),
            }
        }
        absent
    }

    /// Returns the smallest slice worth timing. Shorter slices are registered in less than about
    /// 50 µs, too fast to be compared. A slice of hugepages must be longer: it has fewer pages to
    /// pin.
    pub(in crate::register) fn min_slice_bytes(&self) -> u64 {
        let base = self.segments.iter().filter(|segment| segment.page == PageSize::Base);
        if base.map(|segment| segment.range.len()).sum::<usize>() > self.len / 2 {
            4 << 20
        } else {
            64 << 20
        }
    }

    /// Returns the ends of the chunks, in order: as long as possible, at most `max_bytes` bytes
    /// each. A chunk ends on a boundary of the pages at that place. If a chunk cannot be as long as
    /// such a page, it ends on a boundary of base pages; if it cannot be as long as a base page, it
    /// ends anywhere.
    pub(in crate::register) fn chunk_ends(&self, max_bytes: u64) -> Vec<usize> {
        let max = usize::try_from(max_bytes).unwrap_or(usize::MAX).max(1);
        let base = sys::page_size();
        let mut segments = self.segments.iter().peekable();
        let mut ends = Vec::with_capacity(self.len.div_ceil(max).min(1 << 20));
        let mut at = 0;
        while at < self.len {
            let to = at.saturating_add(max).min(self.len);
            // The segment that contains this end, or begins at it.
            while segments.next_if(|segment| segment.range.end <= to).is_some() {}
            let page = segments.peek().map_or(base, |segment| segment.page.bytes());
            let down = |page: usize| to.checked_sub((self.address + to) % page);
            let on_boundary = || [page, base].into_iter().filter_map(down).find(|end| *end > at);
            at = if to == self.len { to } else { on_boundary().unwrap_or(to) };
            ends.push(at);
        }
        ends
    }
}
