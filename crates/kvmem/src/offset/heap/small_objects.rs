//! *Small objects* are placed together at the far end of the space, and their surroundings drain.
//!
//! A small object that is freed late in the middle of the space splits room that large objects
//! need. While small requests are a good part of the traffic, they are therefore cut from one hole
//! that is held back for them, the *small-object region*. It is a piece of about a quarter of the
//! mean request, taken as far out as there is room. It is never refilled. Ranges freed in it
//! coalesce with the free ranges around. When it is used up, the next one is opened as far out as
//! there is room then. So old regions drain, and small objects move outwards. While there is no
//! room for a region, small requests are placed like any other.

use super::heap::Heap;
use super::ranges::Placed;

/// Region sizes are whole pages, and at most 1/`PART_OF_SPACE` of the space.
const PAGE: u64 = 4096;
const PART_OF_SPACE: u64 = 64;

impl Heap {
    /// Allocates a small request from the region; opens a new region if needed. Returns `None` if
    /// there is no room for a region, as far as is known.
    // Out of line: few requests come here.
    #[inline(never)]
    pub(super) fn allocate_in_region(&mut self, size: u64) -> Option<Placed> {
        if !self.ranges.region_holds(size) {
            self.close_region();
            self.open_region(size)?;
        }
        Some(self.ranges.take_in_region(size))
    }

    /// Holds back a piece of the outermost hole with room for it, unless the last search failed not
    /// long ago.
    fn open_region(&mut self, size: u64) -> Option<()> {
        let seen = self.policy.seen();
        if !self.region_searches.are_due(seen) {
            return None;
        }
        let region_size = self.region_size(size);
        let Some(id) = self.ranges.outermost_hole(region_size) else {
            self.region_searches.found_nothing(seen);
            return None;
        };
        self.region_searches.found();
        self.ranges.carve_region(id, region_size);
        Some(())
    }

    /// Returns the length of a new region, for a request of `size` bytes.
    pub(super) fn region_size(&self, size: u64) -> u64 {
        let max = (self.capacity() / PART_OF_SPACE).min(self.ranges.boundary());
        (self.policy.mean() / 4 / PAGE * PAGE).min(max).max(size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::offset::placement::Placement;

    #[test]
    fn a_full_far_end_is_not_searched_again_and_again() {
        let mut heap = Heap::new(0..1 << 30, None, Placement::Renewal, u32::MAX);
        heap.fresh = false;
        // Every second request is small. Then the far end is filled with small objects that stay.
        let (small, large) = (4 << 10, 1 << 20);
        for _ in 0..1024 {
            heap.allocate(large / 2).unwrap();
            heap.allocate(small).unwrap();
        }
        assert!(heap.policy.is_small(small));
        let mut opened = 0;
        while heap.ranges.outermost_hole(heap.region_size(small)).is_some() {
            heap.allocate(small).unwrap();
            opened += 1;
            assert!(opened < 1 << 18, "the space has to become full");
        }
        heap.close_region();
        let _ = heap.allocate_in_region(small);
        let pause = heap.region_searches.pause();
        assert!(!heap.ranges.region_holds(1) && pause > 0);
        assert!(heap.allocate_in_region(small).is_none());
        assert_eq!(heap.region_searches.pause(), pause, "no other look so soon");
        heap.check().unwrap();
    }
}
