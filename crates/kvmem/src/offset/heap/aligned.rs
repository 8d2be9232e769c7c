//! *Aligned*: requests whose start is aligned. The bytes before it stay free.

use super::heap::Heap;
use super::ranges::{Placed, aligned_start};

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
        let small_region = self.ranges.coalesced_region();
        if small_region.is_some_and(|joined| aligned_start(joined, size, align).is_some()) {
            self.close_region();
            if let Some(placed) = self.fit_aligned(size, align) {
                return Some(placed);
            }
        }
        self.ranges.take_aligned_in_runs(size, align)
    }

    fn fit_aligned(&mut self, size: u64, align: u64) -> Option<Placed> {
        self.coalesce();
        let (bins, lists) = (self.ranges.bins(), self.ranges.bins().lists());
        let fits = |&id: &u32| aligned_start(bins[id].range(), size, align).is_some();
        let certain = size.saturating_add(align - 1);
        let id = lists
            .holes_from(size)
            .take(MAX_LOOKS)
            .find(fits)
            .or_else(|| lists.above(lists.list_of(certain)).map(|list| lists.first(list)))
            .or_else(|| {
                let long = |&id: &u32| bins[id].size.saturating_add(size / 32) >= size;
                lists.holes_down_from(certain).take_while(long).take(MAX_LAST_LOOKS).find(fits)
            })?;
        let start = aligned_start(bins[id].range(), size, align)?;
        Some(self.ranges.take_at(id, start, size))
    }
}
