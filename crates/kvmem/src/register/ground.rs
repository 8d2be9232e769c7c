//! *Ground*: what a plan needs to know of the memory: where it lies, which pages it has, how much
//! of it is there.

use std::ops::Range;

use super::{Platform, RegisterError};
use crate::arena::{PageSize, Receipt, Region};
use crate::sys;

/// Memory to be registered. Ranges are offsets from its beginning.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    /// The first address, as far as page boundaries go.
    pub(super) address: usize,
    pub(super) len: usize,
    /// In order, without gaps.
    pub(super) stretches: Vec<Stretch>,
}

/// A range of pages of one kind.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) range: Range<usize>,
    pub(super) page: PageSize,
    pub(super) resident: u64,
}

impl Ground {
    /// As it was when a region was mapped. Regions begin on a boundary of their largest pages.
    pub(super) fn of(receipt: &Receipt) -> Ground {
        let stretches = receipt.ranges.iter().map(|part| Stretch {
            range: part.range.clone(),
            page: part.got,
            resident: part.resident_bytes.min(part.range.len() as u64),
        });
        Ground { address: 0, len: receipt.usable_bytes, stretches: stretches.collect() }
    }

    /// As it is now.
    pub(super) fn now(region: &Region, host: &dyn Platform) -> Result<Ground, RegisterError> {
        let stretches = region.pieces(0..region.len()).map(|(piece, range)| {
            let resident = host.resident_bytes(region, range.clone())?;
            Ok(Stretch { range, page: piece.got, resident })
        });
        Ok(Ground {
            address: region.base().addr().get(),
            len: region.len(),
            stretches: stretches.collect::<Result<_, RegisterError>>()?,
        })
    }

    pub(super) fn resident(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.resident).sum()
    }

    /// Bytes of ordinary memory that are not resident. Those of a pool need not be found: they are
    /// reserved.
    pub(super) fn ordinary_absent(&self) -> u64 {
        let ordinary = self.stretches.iter().filter(|stretch| !stretch.page.is_pooled());
        ordinary.map(|stretch| (stretch.range.len() as u64).saturating_sub(stretch.resident)).sum()
    }

    /// Ranges that are not all resident; neighbours are joined.
    pub(super) fn absent(&self) -> Vec<Range<usize>> {
        let mut absent: Vec<Range<usize>> = Vec::new();
        for stretch in
            self.stretches.iter().filter(|stretch| stretch.resident < stretch.range.len() as u64)
        {
            match absent.last_mut() {
                Some(last) if last.end == stretch.range.start => last.end = stretch.range.end,
                _ => absent.push(stretch.range.clone()),
            }
        }
        absent
    }

    /// Slices shorter than this are registered too quickly, in less than some 50 µs, to be
    /// compared: there are fewer hugepages to be pinned than base pages.
    pub(super) fn slice_min(&self) -> u64 {
        let base = self.stretches.iter().filter(|stretch| stretch.page == PageSize::Base);
        if base.map(|stretch| stretch.range.len()).sum::<usize>() > self.len / 2 {
            4 << 20
        } else {
            64 << 20
        }
    }

    /// Cuts it into pieces of at most `most` bytes, as long as possible: the ends of all of them,
    /// in order. A cut is on a boundary of the pages that lie there; only where a piece cannot
    /// be as long as such a page it is on one of base pages, or where it cannot be as long as
    /// these, on none.
    pub(super) fn cuts(&self, most: u64) -> Vec<usize> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        let base = sys::page_size();
        let mut stretches = self.stretches.iter().peekable();
        let mut cuts = Vec::with_capacity(self.len.div_ceil(most).min(1 << 20));
        let mut at = 0;
        while at < self.len {
            let to = at.saturating_add(most).min(self.len);
            // The stretch that the cut lies in, or begins.
            while stretches.next_if(|stretch| stretch.range.end <= to).is_some() {}
            let page = stretches.peek().map_or(base, |stretch| stretch.page.bytes());
            let down = |page: usize| to.checked_sub((self.address + to) % page);
            let on_boundary = || [page, base].into_iter().filter_map(down).find(|cut| *cut > at);
            at = if to == self.len { to } else { on_boundary().unwrap_or(to) };
            cuts.push(at);
        }
        cuts
    }
}
