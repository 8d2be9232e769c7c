//! *Small-object region*: a hole that is held back for small objects.

use std::ops::Range;

use super::super::bins::Hole;
use super::super::chunked_table::NIL;
use super::chain::SENTINEL;
use super::placed::Placed;
use super::range_table::RangeTable;
use crate::offset::placement::HoleEnd;

/// Ranges examined from the far end when a region is opened.
const LOOK_BACK: usize = 256;

impl RangeTable {
    /// Returns whether the region has at least `size` bytes left.
    #[inline]
    pub(crate) fn region_holds(&self, size: u64) -> bool {
        self.small_region != NIL && self.bins[self.small_region].size >= size
    }

    /// Allocates the last `size` bytes of the region, which has them.
    #[inline]
    pub(crate) fn take_in_region(&mut self, size: u64) -> Placed {
        self.count_allocated(size);
        let id = self.small_region;
        let hole = &mut self.bins[id];
        if hole.size == size {
            let hole = self.bins.remove_held_back(id);
            self.small_region = NIL;
            self.chain.set_used(hole.node, hole.offset);
            return Placed { node: hole.node, offset: hole.offset };
        }
        hole.size -= size;
        let (node, offset) = (hole.node, hole.end());
        Placed { node: self.chain.insert_after(node, offset), offset }
    }

    /// Returns the outermost of the last ranges that is a hole of at least `size` bytes.
    /// O([`LOOK_BACK`]).
    pub(crate) fn outermost_hole(&self, size: u64) -> Option<u32> {
        let mut node = self.chain[SENTINEL].prev;
        for _ in 0..LOOK_BACK {
            if node == SENTINEL {
                return None;
            }
            if let Some(id) = self.chain[node].hole()
                && self.bins[id].is_binned()
                && self.bins[id].size >= size
            {
                return Some(id);
            }
            node = self.chain[node].prev;
        }
        None
    }

    /// Makes the upper `size` bytes of the binned hole `id` the region.
    pub(crate) fn carve_region(&mut self, id: u32, size: u64) {
        if self.bins[id].size == size {
            self.bins.pull(id);
            self.small_region = id;
            return;
        }
        let Placed { node, offset } = self.take(id, size, HoleEnd::High);
        self.count_freed(size);
        let held = self.bins.insert_held_back(Hole::new(offset, size, node));
        self.chain.set_free(node, held);
        self.small_region = held;
    }

    /// Returns the region's hole to the bins, coalesced with its free neighbours. Returns whether
    /// there was one.
    pub(crate) fn close_region(&mut self) -> bool {
        if self.small_region == NIL {
            return false;
        }
        let Hole { offset, size, node, .. } = self.bins.remove_held_back(self.small_region);
        self.small_region = NIL;
        self.release(node, offset, size);
        true
    }

    /// Returns the nodes, first to last, of the free ranges that closing the region would make one.
    /// O(1).
    pub(crate) fn coalesced_region_nodes(&self) -> Option<(u32, u32)> {
        let region = (self.small_region != NIL).then(|| self.bins[self.small_region].node)?;
        let (mut first, mut last) = (region, region);
        let is_binned =
            |node: u32| self.chain[node].hole().is_some_and(|id| self.bins[id].is_binned());
        let prev = self.chain[region].prev;
        if is_binned(prev) && !self.is_edge(self.start_of(region)) {
            first = prev;
        }
        let next = self.chain[region].next;
        if is_binned(next) && !self.is_edge(self.start_of(next)) {
            last = next;
        }
        // A whole segment joins the runs on both sides.
        let end = self.start_of(self.chain[last].next);
        let ends = self.is_edge(end) || end == self.end();
        if self.has_boundary() && self.is_edge(self.start_of(first)) && ends {
            let is_run = |node: u32| {
                let hole = self.chain[node].hole();
                hole.is_some_and(|id| self.runs.contain(&self.bins, id))
            };
            if is_run(self.chain[first].prev) {
                first = self.chain[first].prev;
            }
            if is_run(self.chain[last].next) {
                last = self.chain[last].next;
            }
        }
        Some((first, last))
    }

    /// Returns the free range that closing the region would yield.
    pub(crate) fn coalesced_region(&self) -> Option<Range<u64>> {
        if self.small_region == NIL {
            return None;
        }
        let hole = &self.bins[self.small_region];
        let node = &self.chain[hole.node];
        let beyond = |node: u32, seam: u64| match self.chain[node].hole() {
            Some(id) if self.bins[id].is_binned() && !self.is_edge(seam) => self.bins[id].size,
            _ => 0,
        };
        Some(
            hole.offset - beyond(node.prev, hole.offset)
                ..hole.end() + beyond(node.next, hole.end()),
        )
    }
}
