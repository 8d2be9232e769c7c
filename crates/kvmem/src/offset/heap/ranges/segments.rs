//! *Segments*: wholly free ones become binned holes and runs again.
//!
//! A request that finds no room in the bins *opens* a segment of a run: the segment becomes a hole
//! in a bin. A segment that becomes wholly free is added to the adjacent runs. Both take O(1).
//!
//! ## The first segment with an aligned start
//!
//! If the alignment *A* does not divide the boundary *B*, the aligned range may fit into a few
//! segments only. The segment that begins at *o + i·B* has its first aligned start
//! *(−o − i·B) mod A* bytes further on, and that must be at most *B − size*. [`first_below`] finds
//! the least such *i* in O(log *A*) steps.

use super::super::bins::Hole;
use super::super::chunked_table::NIL;
use super::chain::SENTINEL;
use super::first_below::first_below;
use super::placed::Placed;
use super::range_table::RangeTable;

/// Listed runs that one aligned request examines, besides the wilderness.
const MAX_RUN_LOOKS: usize = 64;

impl RangeTable {
    /// Returns whether the space ends with a run.
    pub(crate) fn has_wilderness(&self) -> bool {
        self.runs.wilderness != NIL
    }

    /// Returns the length of the longest range that a segment of a run could hold.
    pub(super) fn largest_segment(&self) -> u64 {
        match (self.runs.first(), self.runs.wilderness) {
            (NIL, NIL) => 0,
            (NIL, wilderness) => self.bins[wilderness].size.min(self.runs.boundary),
            _ => self.runs.boundary,
        }
    }

    /// Opens a segment for `size` bytes, if one is long enough; returns whether it did. O(1).
    pub(crate) fn open_segment(&mut self, size: u64) -> bool {
        self.largest_segment() >= size && self.open_next().is_some()
    }

    /// Opens a segment, a whole one if there is one. O(1).
    pub(crate) fn open_next(&mut self) -> Option<u32> {
        let run = match self.runs.first() {
            NIL => self.runs.wilderness,
            run => run,
        };
        (run != NIL).then(|| self.open_at(run, self.bins[run].offset))
    }

    /// Opens the last segment of the space if it is free and shorter than the others. The
    /// wilderness then has only whole segments.
    pub(crate) fn open_tail(&mut self) {
        let end = self.end();
        let start = end - end % self.runs.boundary;
        if self.has_wilderness() && start < end {
            self.open_at(self.runs.wilderness, start);
        }
    }

    /// Adds the last segment to the runs again if it is still free.
    pub(crate) fn add_tail_to_runs(&mut self) {
        if let Some(id) = self.chain[self.chain[SENTINEL].prev].hole()
            && self.bins[id].is_binned()
            && self.has_boundary()
        {
            self.add_to_runs(id);
        }
    }

    /// Returns the number of whole segments in the runs, at most `max`. O(`max`).
    pub(crate) fn free_segments(&self, max: u64) -> u64 {
        let mut segments = 0;
        for run in self.runs.wilderness().into_iter().chain(self.runs.listed(&self.bins)) {
            if segments >= max {
                break;
            }
            segments += self.bins[run].size / self.runs.boundary;
        }
        segments.min(max)
    }

    /// Returns the binned hole that contains the byte `at` of the hole `id`: opens its segment if
    /// `id` is a run. Takes at most two more nodes. O(1).
    pub(super) fn open_around(&mut self, id: u32, at: u64) -> u32 {
        if self.runs.contain(&self.bins, id) {
            self.open_at(id, at - at % self.runs.boundary)
        } else {
            id
        }
    }

    /// Makes a binned hole of the segment that begins at `start` within `run`. The rest of the run,
    /// before and behind it, stays held back. Takes at most two more nodes. O(1).
    fn open_at(&mut self, run: u32, start: u64) -> u32 {
        let Hole { offset, size, node, .. } = self.bins[run];
        let rest = offset + size - start;
        if start > offset {
            let before = self.chain.insert_before(node, offset);
            let id = self.bins.insert_held_back(Hole::new(offset, start - offset, before));
            self.chain.set_free(before, id);
            self.runs.list(&mut self.bins, id);
        }
        let segment = rest.min(self.runs.boundary);
        if segment == rest {
            (self.bins[run].offset, self.bins[run].size) = (start, rest);
            self.runs.remove(&mut self.bins, run);
            self.bins.push(run);
            return run;
        }
        let opened = self.chain.insert_before(node, start);
        let id = self.bins.insert(Hole::new(start, segment, opened));
        self.chain.set_free(opened, id);
        let run = &mut self.bins[run];
        (run.offset, run.size) = (start + segment, rest - segment);
        id
    }

    /// Opens a run that is one free range of exactly `size` bytes at a multiple of `align`, which
    /// needs no node.
    pub(crate) fn open_whole_run(&mut self, size: u64, align: u64) -> Option<u32> {
        if size > self.runs.boundary {
            return None;
        }
        let fits = |&run: &u32| {
            let Hole { offset, size: free, .. } = self.bins[run];
            free == size && offset.is_multiple_of(align)
        };
        let listed = self.runs.listed(&self.bins).take(MAX_RUN_LOOKS);
        let run = listed.chain(self.runs.wilderness()).find(fits)?;
        self.runs.remove(&mut self.bins, run);
        self.bins.push(run);
        Some(run)
    }

    /// Allocates `size` bytes at a multiple of `align` from a run. Examines the last
    /// [`MAX_RUN_LOOKS`] listed runs and the wilderness. O(log `align`) for each.
    pub(crate) fn take_aligned_in_runs(&mut self, size: u64, align: u64) -> Option<Placed> {
        let place = |run| Some((run, self.start_in_run(run, size, align)?));
        let listed = self.runs.listed(&self.bins).take(MAX_RUN_LOOKS);
        let (run, start) = listed.chain(self.runs.wilderness()).find_map(place)?;
        let id = self.open_at(run, start - start % self.runs.boundary);
        Some(self.take_at(id, start, size))
    }

    /// Returns where the first aligned range of `size` bytes in `run` begins, if there is one.
    fn start_in_run(&self, run: u32, size: u64, align: u64) -> Option<u64> {
        let (Hole { offset, .. }, boundary) = (self.bins[run], self.runs.boundary);
        let (end, slack) = (self.bins[run].end(), boundary.checked_sub(size)?);
        let start = (offset.wrapping_neg() % align, boundary.wrapping_neg() % align);
        let segment = first_below(start.0, start.1, align, slack)?.checked_mul(boundary.into())?;
        let segment =
            u64::try_from(segment).ok()?.checked_add(offset).filter(|&segment| segment < end)?;
        let start = segment.checked_next_multiple_of(align)?;
        (start <= end && end - start >= size).then_some(start)
    }

    /// Holds a binned hole back if it is a wholly free segment, coalesced with the runs on both
    /// sides. O(1).
    pub(super) fn add_to_runs(&mut self, id: u32) {
        let Hole { offset, size, node, .. } = self.bins[id];
        let ends = size == self.runs.boundary || offset + size == self.end();
        if !ends || !offset.is_multiple_of(self.runs.boundary) {
            return;
        }
        self.bins.pull(id);
        let mut run = id;
        if let Some(left) = self.run_at(self.chain[node].prev) {
            self.bins.remove_held_back(id);
            self.chain.remove(node);
            self.bins[left].size += size;
            run = left;
        }
        let next = self.chain[self.bins[run].node].next;
        if let Some(right) = self.run_at(next) {
            self.runs.unlist(&mut self.bins, run);
            let Hole { offset, size, node, .. } = self.bins.remove_held_back(run);
            self.chain.remove(node);
            let right = &mut self.bins[right];
            (right.offset, right.size) = (offset, size + right.size);
        } else if next == SENTINEL {
            self.runs.unlist(&mut self.bins, run);
            self.runs.wilderness = run;
        } else if run == id {
            self.runs.list(&mut self.bins, run);
        }
    }

    /// Returns the run of the node, if it is one.
    fn run_at(&self, node: u32) -> Option<u32> {
        let id = self.chain[node].hole()?;
        self.runs.contain(&self.bins, id).then_some(id)
    }
}
