//! *Small objects* are placed together at the far end of the space, and their surroundings drain.
//!
//! A small object that is freed late in the middle of the space splits room that large objects
//! need. While small requests are a good part of the traffic, they are therefore cut from one hole
//! that is held back for them, the *small-object region*. It is a piece of about a quarter of the
//! mean request, taken as far out as there is room. It is never refilled. Ranges freed in it
//! coalesce with the free ranges around. When it is used up, the next one is opened as far out as
//! there is room then. So old regions drain, and small objects move outwards.
//!
//! If the far end is permanently full of small objects, a search for room reads past all of them
//! and fails, and so would the next one. After each search that fails there is therefore a pause
//! before the next, twice as long as the previous pause. Meanwhile small requests are placed like
//! any other.

use std::ops::Range;

use super::bins::Hole;
use super::heap::{Heap, Placed, SENTINEL};
use super::table::NIL;
use crate::offset::placement::HoleEnd;

/// Ranges examined from the far end when a region is opened.
const LOOK_BACK: usize = 256;
/// Region sizes are whole pages, and at most 1/`PART_OF_SPACE` of the space.
const PAGE: u64 = 4096;
const PART_OF_SPACE: u64 = 64;
/// Requests between a failed search and the next one: after the first failure, and at most.
const MIN_PAUSE: u64 = 8;
const MAX_PAUSE: u64 = 1024;

/// When to search for room for a region.
#[derive(Default)]
pub(super) struct RegionSearches {
    /// Number of requests before which no search is made.
    next_at: u64,
    /// Length of the last pause; 0 after a search that found room.
    pause: u64,
}

impl RegionSearches {
    fn are_due(&self, seen: u64) -> bool {
        seen >= self.next_at
    }

    fn found(&mut self) {
        self.pause = 0;
    }

    fn found_nothing(&mut self, seen: u64) {
        self.pause = (2 * self.pause).clamp(MIN_PAUSE, MAX_PAUSE);
        self.next_at = seen + self.pause;
    }
}

impl Heap {
    /// Allocates a small request from the region; opens a new region if needed. Returns `None` if
    /// there is no room for a region, as far as is known.
    // Out of line: few requests come here.
    #[inline(never)]
    pub(super) fn allocate_in_region(&mut self, size: u64) -> Option<Placed> {
        let fits = self.small_region != NIL && self.bins.holes[self.small_region].size >= size;
        if !fits {
            self.close_region();
            self.open_region(size)?;
        }
        self.count_allocated(size);
        let id = self.small_region;
        let hole = &mut self.bins.holes[id];
        if hole.size == size {
            let hole = self.bins.remove_held_back(id);
            self.small_region = NIL;
            self.set_used(hole.node, hole.offset);
            return Some(Placed { node: hole.node, offset: hole.offset });
        }
        hole.size -= size;
        let (node, offset) = (hole.node, hole.end());
        Some(Placed { node: self.link_used_after(node, offset), offset })
    }

    /// Holds back a piece of the outermost hole with room for it, unless the last search failed not
    /// long ago.
    fn open_region(&mut self, size: u64) -> Option<()> {
        let seen = self.policy.seen();
        if !self.region_searches.are_due(seen) {
            return None;
        }
        let room = self.find_region(size);
        match room {
            Some((id, want)) => {
                self.region_searches.found();
                self.carve_region(id, want);
            }
            None => self.region_searches.found_nothing(seen),
        }
        room.map(|_| ())
    }

    /// Returns the outermost hole with room for a region, and the size of that region.
    /// O([`LOOK_BACK`]).
    fn find_region(&self, size: u64) -> Option<(u32, u64)> {
        let most = (self.capacity / PART_OF_SPACE).min(self.boundary);
        let want = (self.policy.mean() / 4 / PAGE * PAGE).min(most).max(size);
        let mut node = self.nodes[SENTINEL].prev;
        for _ in 0..LOOK_BACK {
            if node == SENTINEL {
                return None;
            }
            if let Some(id) = self.nodes[node].hole()
                && self.bins.holes[id].is_binned()
                && self.bins.holes[id].size >= want
            {
                return Some((id, want));
            }
            node = self.nodes[node].prev;
        }
        None
    }

    /// Makes the upper `size` bytes of the binned hole `id` the region.
    fn carve_region(&mut self, id: u32, size: u64) {
        let Hole { size: room, .. } = self.bins.holes[id];
        if room == size {
            self.bins.pull(id);
            self.small_region = id;
            return;
        }
        let Placed { node, offset } = self.take(id, size, HoleEnd::High);
        self.allocated -= size;
        self.live -= 1;
        let held = self.bins.insert_held_back(Hole::new(offset, size, node));
        self.set_free(node, held);
        self.small_region = held;
    }

    /// Returns the region's hole to the bins, coalesced with its free neighbours. Returns whether
    /// there was one.
    pub(super) fn close_region(&mut self) -> bool {
        self.coalesce();
        if self.small_region == NIL {
            return false;
        }
        let Hole { offset, size, node, .. } = self.bins.remove_held_back(self.small_region);
        self.small_region = NIL;
        self.release(node, offset, size);
        true
    }

    /// Returns the free range that closing the region would yield.
    pub(super) fn coalesced_region(&self) -> Option<Range<u64>> {
        if self.small_region == NIL {
            return None;
        }
        let hole = &self.bins.holes[self.small_region];
        let node = &self.nodes[hole.node];
        let beyond = |node: u32, seam: u64| match self.nodes[node].hole() {
            Some(id) if self.bins.holes[id].is_binned() && !self.is_edge(seam) => {
                self.bins.holes[id].size
            }
            _ => 0,
        };
        Some(
            hole.offset - beyond(node.prev, hole.offset)
                ..hole.end() + beyond(node.next, hole.end()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::placement::Placement;

    #[test]
    fn failed_searches_become_rare_until_one_succeeds() {
        let mut looks = RegionSearches::default();
        let mut made = Vec::new();
        for seen in 0..5000 {
            if looks.are_due(seen) {
                looks.found_nothing(seen);
                made.push(seen);
            }
        }
        assert_eq!(made[..5], [0, 8, 24, 56, 120]);
        assert_eq!(made[7..], [1016, 2040, 3064, 4088]);
        looks.found();
        looks.found_nothing(5000);
        assert!(looks.are_due(5000 + MIN_PAUSE));
    }

    #[test]
    fn a_full_far_end_is_not_searched_again_and_again() {
        let mut heap = Heap::new(1 << 30, None, Placement::Renewal, u32::MAX);
        heap.fresh = false;
        // Every second request is small. Then the far end is filled with small objects that stay.
        let (small, large) = (4 << 10, 1 << 20);
        for _ in 0..1024 {
            heap.allocate(large / 2).unwrap();
            heap.allocate(small).unwrap();
        }
        assert!(heap.policy.is_small(small));
        let mut opened = 0;
        while heap.find_region(small).is_some() {
            heap.allocate(small).unwrap();
            opened += 1;
            assert!(opened < 1 << 18, "the space has to become full");
        }
        heap.close_region();
        let _ = heap.allocate_in_region(small);
        let pause = heap.region_searches.pause;
        assert!(heap.small_region == NIL && pause > 0);
        assert!(heap.allocate_in_region(small).is_none());
        assert_eq!(heap.region_searches.pause, pause, "no other look so soon");
        heap.check().unwrap();
    }
}
