//! *Held back*: the holes outside of the bins, among all holes.

use super::super::chunked_table::NIL;
use super::range_table::RangeTable;

impl RangeTable {
    /// Returns the holes that are held back from the bins.
    pub(crate) fn held_back(&self) -> impl Iterator<Item = u32> {
        let single = [self.runs.wilderness, self.small_region].into_iter().filter(|&id| id != NIL);
        single.chain(self.runs.listed(&self.bins))
    }

    /// Returns the length of the longest range that could be allocated.
    #[inline]
    pub(crate) fn largest(&mut self) -> u64 {
        let largest = self.bins.largest();
        // All three are `NIL` unless something is held back.
        let held_back = self.runs.wilderness & self.small_region & self.runs.first() != NIL;
        if held_back { largest.max(self.largest_held_back()) } else { largest }
    }

    #[cold]
    fn largest_held_back(&self) -> u64 {
        let small_region = self.coalesced_region().map_or(0, |joined| joined.end - joined.start);
        self.largest_segment().max(small_region)
    }

    /// Returns the length of the longest binned hole.
    #[inline]
    pub(crate) fn largest_binned(&mut self) -> u64 {
        self.bins.largest()
    }

    /// Compacts the records of holes after `frees` frees, if they take far more memory than they
    /// need. O(`frees`).
    #[inline]
    pub(crate) fn trim_holes(&mut self, frees: usize) {
        let moves = self.bins.moves_due(frees);
        if moves > 0 {
            self.move_holes(moves);
        }
    }

    #[cold]
    fn move_holes(&mut self, moves: usize) {
        for _ in 0..moves {
            let Some((old, new)) = self.bins.move_slot_down() else { break };
            self.chain.set_free(self.bins[new].node, new);
            self.runs.record_moved(&mut self.bins, old, new);
            if self.small_region == old {
                self.small_region = new;
            }
        }
    }
}
