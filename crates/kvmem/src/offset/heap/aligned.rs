//! Aligned allocation: the start is aligned, and the bytes before it stay free.

use std::ops::Range;

use super::bins::Hole;
use super::heap::{Heap, Placed};
use super::table::NIL;
use crate::offset::placement::HoleEnd;

/// Holes examined, tightest bins first, before one that is certain to fit is taken.
const MAX_LOOKS: usize = 24;
/// Holes examined, longest first, when none is certain to fit. An aligned start in another hole may
/// be missed.
const MAX_LAST_LOOKS: usize = 384;

impl Heap {
    /// Allocates `size` ≥ 1 bytes whose offset is a multiple of `align`, a power of two.
    ///
    /// O(1): a hole in a list above that of `size + align − 1` fits. If there is none,
    /// [`MAX_LAST_LOOKS`] holes are examined before the request fails. With a boundary, the runs of
    /// free segments follow.
    pub(crate) fn allocate_aligned(&mut self, size: u64, align: u64) -> Option<Placed> {
        if align == 1 {
            return self.allocate(size);
        }
        let placed = if self.has_free_nodes() {
            self.allocate_aligned_anywhere(size, align)?
        } else {
            self.fit_whole(size, align)?
        };
        self.policy.record(size);
        Some(placed)
    }

    fn allocate_aligned_anywhere(&mut self, size: u64, align: u64) -> Option<Placed> {
        if let Some(placed) = self.fit_aligned(size, align) {
            return Some(placed);
        }
        let small_region = self.coalesced_region();
        if small_region.is_some_and(|joined| aligned_start(joined, size, align).is_some()) {
            self.close_region();
            if let Some(placed) = self.fit_aligned(size, align) {
                return Some(placed);
            }
        }
        self.fit_aligned_in_runs(size, align)
    }

    fn fit_aligned(&mut self, size: u64, align: u64) -> Option<Placed> {
        self.coalesce();
        let fits = |&id: &u32| aligned_start(self.bins.holes[id].range(), size, align).is_some();
        let certain = size.saturating_add(align - 1);
        let id = self
            .bins
            .holes_from(size)
            .take(MAX_LOOKS)
            .find(fits)
            .or_else(|| {
                self.bins.above(self.bins.list_of(certain)).map(|list| self.bins.first(list))
            })
            .or_else(|| {
                let long = |&id: &u32| self.bins.holes[id].size.saturating_add(size / 32) >= size;
                self.bins.holes_down_from(certain).take_while(long).take(MAX_LAST_LOOKS).find(fits)
            })?;
        let hole = self.bins.holes[id];
        let start = aligned_start(hole.range(), size, align)?;
        Some(self.take_at(id, start, size))
    }

    /// Allocates `size` bytes at the start of a free slot, unless the first hole of its own list is
    /// exact. The space is divided into slots of `slot ≥ size` bytes, so an object freed in one
    /// leaves room for the next. O(1).
    pub(super) fn fit_slot(&mut self, size: u64, slot: u64) -> Option<Placed> {
        let first = self.bins.first(self.bins.list_of(size));
        if first != NIL && self.bins.holes[first].size == size {
            return None;
        }
        let (id, start) =
            self.bins.holes_from(slot).take(MAX_LOOKS).find_map(|id| {
                Some((id, aligned_start(self.bins.holes[id].range(), slot, slot)?))
            })?;
        Some(self.take_at(id, start, size))
    }

    /// Allocates `[start, start + size)` out of the binned hole `id`, which contains it.
    pub(super) fn take_at(&mut self, id: u32, start: u64, size: u64) -> Placed {
        let Hole { offset, node, .. } = self.bins.holes[id];
        let end = self.bins.holes[id].end();
        if start == offset {
            return self.take(id, size, HoleEnd::Low);
        }
        if start + size == end {
            return self.take(id, size, HoleEnd::High);
        }
        self.count_allocated(size);
        self.bins.change(id, offset, start - offset);
        let used = self.link_used_after(node, start);
        let rest = self.link_used_after(used, start + size);
        let id = self.bins.insert(Hole::new(start + size, end - start - size, rest));
        self.set_free(rest, id);
        Placed { node: used, offset: start }
    }
}

/// Returns where a range of `size` bytes at a multiple of `align` begins in a free one, if it fits.
fn aligned_start(free: Range<u64>, size: u64, align: u64) -> Option<u64> {
    let start = free.start.checked_next_multiple_of(align)?;
    (start <= free.end && free.end - start >= size).then_some(start)
}
