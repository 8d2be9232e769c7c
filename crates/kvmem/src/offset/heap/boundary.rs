//! *Boundary and bounds*: multiples that no allocation crosses, and the end of the space as it
//! moves.
//!
//! A DMA consumer registers memory in chunks; a range that lies in two chunks has no key. With a
//! boundary *B*, no used range crosses a multiple of *B*. Free ranges do not coalesce across one
//! either. Every binned hole therefore lies within one *segment* of *B* bytes, and the search can
//! ignore boundaries.
//!
//! Wholly free segments are not in the bins. Adjacent ones form a *run*: one hole that begins at a
//! boundary, ends at one or at the end of the space, and is held back. Runs are as long as
//! possible. A space of a million segments therefore costs what its used segments cost. A request
//! that finds no room in the bins *opens* a segment of a run. A segment that becomes wholly free is
//! added to the runs beside it. Both take O(1). The run at the end of the space is the
//! *wilderness*; the other runs are in a list.
//!
//! ## The first segment with an aligned start
//!
//! If the alignment *A* does not divide *B*, the aligned range may fit into a few segments only.
//! The segment that begins at *o + i·B* has its first aligned start *(−o − i·B) mod A* bytes
//! further on, and that must be at most *B − size*. [`first_below`] finds the least such *i* in
//! O(log *A*) steps, as Euclid's algorithm finds a divisor.

use super::bins::Hole;
use super::heap::{Heap, NO_BOUNDARY, Placed, SENTINEL};
use super::table::NIL;
use crate::offset::error::SpaceError;

/// Listed runs that one aligned request examines, besides the wilderness.
const MAX_RUN_LOOKS: usize = 64;

impl Heap {
    /// Returns the length of the longest range that a segment of a run could hold.
    pub(super) fn largest_segment(&self) -> u64 {
        match (self.bins.first_run(), self.wilderness) {
            (NIL, NIL) => 0,
            (NIL, wilderness) => self.bins.holes[wilderness].size.min(self.boundary),
            _ => self.boundary,
        }
    }

    /// Opens a segment for `size` bytes, if one is long enough; returns whether it did. O(1).
    pub(super) fn open_segment(&mut self, size: u64) -> bool {
        self.largest_segment() >= size && self.open_next().is_some()
    }

    /// Opens a segment, a whole one if there is one. O(1).
    pub(super) fn open_next(&mut self) -> Option<u32> {
        let run = match self.bins.first_run() {
            NIL => self.wilderness,
            run => run,
        };
        (run != NIL).then(|| self.open_at(run, self.bins.holes[run].offset))
    }

    /// Opens the last segment of the space if it is free and shorter than the others. The
    /// wilderness then has only whole segments.
    pub(super) fn open_tail(&mut self) {
        let start = self.capacity - self.capacity % self.boundary;
        if self.wilderness != NIL && start < self.capacity {
            self.open_at(self.wilderness, start);
        }
    }

    /// Adds the last segment to the runs again if it is still free.
    pub(super) fn add_tail_to_runs(&mut self) {
        if let Some(id) = self.nodes[self.nodes[SENTINEL].prev].hole()
            && self.bins.holes[id].is_binned()
            && self.boundary != NO_BOUNDARY
        {
            self.add_to_runs(id);
        }
    }

    /// Returns the number of whole segments in the runs, at most `most`. O(`most`).
    pub(super) fn free_segments(&self, most: u64) -> u64 {
        let wilderness = Some(self.wilderness).filter(|&wilderness| wilderness != NIL);
        let mut segments = 0;
        for run in wilderness.into_iter().chain(self.bins.runs()) {
            if segments >= most {
                break;
            }
            segments += self.bins.holes[run].size / self.boundary;
        }
        segments.min(most)
    }

    /// Makes a binned hole of the segment that begins at `start` within `run`. The rest of the run,
    /// before and behind it, stays held back. Takes at most two more nodes. O(1).
    fn open_at(&mut self, run: u32, start: u64) -> u32 {
        let Hole { offset, size, node, .. } = self.bins.holes[run];
        let rest = offset + size - start;
        if start > offset {
            let before = self.link_used_before(node, offset);
            let id = self.bins.insert_held_back(Hole::new(offset, start - offset, before));
            self.set_free(before, id);
            self.bins.list_run(id);
        }
        let segment = rest.min(self.boundary);
        if segment == rest {
            (self.bins.holes[run].offset, self.bins.holes[run].size) = (start, rest);
            self.remove_from_runs(run);
            self.bins.push(run);
            return run;
        }
        let opened = self.link_used_before(node, start);
        let id = self.bins.insert(Hole::new(start, segment, opened));
        self.set_free(opened, id);
        let run = &mut self.bins.holes[run];
        (run.offset, run.size) = (start + segment, rest - segment);
        id
    }

    /// Opens a run that is one free range of exactly `size` bytes at a multiple of `align`, which
    /// needs no node.
    pub(super) fn open_whole_run(&mut self, size: u64, align: u64) -> Option<u32> {
        if size > self.boundary {
            return None;
        }
        let fits = |&run: &u32| {
            let Hole { offset, size: room, .. } = self.bins.holes[run];
            room == size && offset.is_multiple_of(align)
        };
        let wilderness = Some(self.wilderness).filter(|&wilderness| wilderness != NIL);
        let run = self.bins.runs().take(MAX_RUN_LOOKS).chain(wilderness).find(fits)?;
        self.remove_from_runs(run);
        self.bins.push(run);
        Some(run)
    }

    /// Removes the run from the runs; it stays held back.
    fn remove_from_runs(&mut self, run: u32) {
        if run == self.wilderness {
            self.wilderness = NIL;
        } else {
            self.bins.unlist_run(run);
        }
    }

    /// Allocates `size` bytes at a multiple of `align` from a run. Examines the last
    /// [`MAX_RUN_LOOKS`] listed runs and the wilderness. O(log `align`) for each.
    pub(super) fn fit_aligned_in_runs(&mut self, size: u64, align: u64) -> Option<Placed> {
        let wilderness = Some(self.wilderness).filter(|&wilderness| wilderness != NIL);
        let place = |run| Some((run, self.start_in_run(run, size, align)?));
        let (run, start) =
            self.bins.runs().take(MAX_RUN_LOOKS).chain(wilderness).find_map(place)?;
        let id = self.open_at(run, start - start % self.boundary);
        Some(self.take_at(id, start, size))
    }

    /// Returns where the first aligned range of `size` bytes in `run` begins, if there is one.
    fn start_in_run(&self, run: u32, size: u64, align: u64) -> Option<u64> {
        let Hole { offset, size: room, .. } = self.bins.holes[run];
        let (end, slack) = (offset + room, self.boundary.checked_sub(size)?);
        let start = (offset.wrapping_neg() % align, self.boundary.wrapping_neg() % align);
        let segment =
            first_below(start.0, start.1, align, slack)?.checked_mul(self.boundary.into())?;
        let segment =
            u64::try_from(segment).ok()?.checked_add(offset).filter(|&segment| segment < end)?;
        let start = segment.checked_next_multiple_of(align)?;
        (start <= end && end - start >= size).then_some(start)
    }

    /// Holds a binned hole back if it is a wholly free segment, coalesced with the runs on both
    /// sides. O(1).
    pub(super) fn add_to_runs(&mut self, id: u32) {
        let Hole { offset, size, node, .. } = self.bins.holes[id];
        let ends = size == self.boundary || offset + size == self.capacity;
        if !ends || !offset.is_multiple_of(self.boundary) {
            return;
        }
        self.bins.pull(id);
        let mut run = id;
        if let Some(left) = self.run_at(self.nodes[node].prev) {
            self.bins.remove_held_back(id);
            self.unlink(node);
            self.bins.holes[left].size += size;
            run = left;
        }
        let next = self.nodes[self.bins.holes[run].node].next;
        if let Some(right) = self.run_at(next) {
            self.bins.unlist_run(run);
            let Hole { offset, size, node, .. } = self.bins.remove_held_back(run);
            self.unlink(node);
            let right = &mut self.bins.holes[right];
            (right.offset, right.size) = (offset, size + right.size);
        } else if next == SENTINEL {
            self.bins.unlist_run(run);
            self.wilderness = run;
        } else if run == id {
            self.bins.list_run(run);
        }
    }

    /// Returns the run of the node, if it is one.
    fn run_at(&self, node: u32) -> Option<u32> {
        let id = self.nodes[node].hole()?;
        (id == self.wilderness || self.bins.holes[id].is_run()).then_some(id)
    }

    /// Adds the free bytes `[start, end)` behind the last range.
    pub(super) fn append_free(&mut self, start: u64, end: u64) {
        let edge = match self.boundary {
            NO_BOUNDARY => end,
            boundary => start.checked_next_multiple_of(boundary).map_or(end, |edge| edge.min(end)),
        };
        if start < edge {
            let node = self.link_used_before(SENTINEL, start);
            self.release(node, start, edge - start);
        }
        if edge < end {
            match self.wilderness {
                NIL => {
                    let node = self.link_used_before(SENTINEL, edge);
                    let id = self.bins.insert_held_back(Hole::new(edge, end - edge, node));
                    self.set_free(node, id);
                    self.wilderness = id;
                }
                wilderness => self.bins.holes[wilderness].size += end - edge,
            }
        }
    }

    /// Moves the end of the space up to `capacity`. O(1).
    pub(crate) fn grow(&mut self, capacity: u64) -> Result<(), SpaceError> {
        if capacity < self.capacity {
            return Err(SpaceError::WrongDirection {
                capacity: self.capacity,
                requested: capacity,
            });
        }
        if !self.has_free_nodes() {
            return Err(SpaceError::TooManyRanges { ranges: self.ranges() });
        }
        self.coalesce();
        let start = self.capacity;
        self.set_capacity(capacity);
        if self.wilderness != NIL {
            self.bins.holes[self.wilderness].size += capacity - start;
        } else {
            self.append_free(start, capacity);
        }
        Ok(())
    }

    /// Moves the end of the space down to `capacity` ≥ 1, if nothing in use lies behind it. O(1 +
    /// free ranges removed); several only at boundaries.
    pub(crate) fn shrink_to(&mut self, capacity: u64) -> Result<(), SpaceError> {
        if capacity > self.capacity {
            return Err(SpaceError::WrongDirection {
                capacity: self.capacity,
                requested: capacity,
            });
        }
        self.coalesce();
        let end_of_last = self.end_of_last();
        if capacity < end_of_last {
            return Err(SpaceError::InUse { requested: capacity, end_of_last });
        }
        self.close_region();
        while let last = self.nodes[SENTINEL].prev
            && let Some(id) = self.nodes[last].hole()
            && let Hole { offset, .. } = self.bins.holes[id]
            && self.bins.holes[id].end() > capacity
        {
            if offset < capacity {
                self.cut_end(id, capacity - offset);
                break;
            }
            if id == self.wilderness {
                self.bins.remove_held_back(id);
                self.wilderness = NIL;
            } else {
                self.bins.remove(id);
            }
            self.unlink(last);
        }
        self.set_capacity(capacity);
        Ok(())
    }

    fn cut_end(&mut self, id: u32, size: u64) {
        if id == self.wilderness {
            self.bins.holes[id].size = size;
        } else {
            let offset = self.bins.holes[id].offset;
            self.bins.change(id, offset, size);
        }
    }

    /// Returns one past the last byte in use.
    fn end_of_last(&self) -> u64 {
        let mut end = self.capacity;
        let mut node = self.nodes[SENTINEL].prev;
        while let Some(id) = self.nodes[node].hole() {
            end = self.bins.holes[id].offset;
            node = self.nodes[node].prev;
        }
        end
    }
}

/// Returns the least *i* ≥ 0 for which *(start + i·step) mod modulus* is at most `limit`. O(log
/// `modulus`).
fn first_below(start: u64, step: u64, modulus: u64, limit: u64) -> Option<u128> {
    if start <= limit {
        return Some(0);
    }
    // Shifted by the start: i·step must reach modulus − start, or up to `limit` beyond it. That is
    // below the modulus.
    let low = u128::from(modulus - start);
    first_multiple(step.into(), modulus.into(), low, low + u128::from(limit))
}

/// Returns the least *i* with *low ≤ i·step mod modulus ≤ high*, where *0 < low ≤ high < modulus*
/// and *step < modulus*.
fn first_multiple(step: u128, modulus: u128, low: u128, high: u128) -> Option<u128> {
    if step == 0 {
        return None;
    }
    let i = low.div_ceil(step);
    if i * step <= high {
        return Some(i);
    }
    // The multiples of `step` skip the interval until they have wrapped around `wraps` times: until
    // wraps·modulus + [low, high] contains one. Modulo `step`, this requires −wraps·modulus to be
    // in the interval.
    let negative = |value: u128| (step - value % step) % step;
    let wraps = first_multiple(modulus % step, step, negative(high), negative(low))?;
    Some((low + wraps * modulus).div_ceil(step))
}

#[cfg(test)]
mod tests {
    use super::first_below;

    #[test]
    fn the_first_below_is_found_as_by_walking() {
        for modulus in 1..=40 {
            for (step, start) in
                (0..modulus).flat_map(|step| (0..modulus).map(move |start| (step, start)))
            {
                for limit in 0..modulus {
                    let walked = (0..modulus).find(|i| (start + step * i) % modulus <= limit);
                    assert_eq!(
                        first_below(start, step, modulus, limit),
                        walked.map(u128::from),
                        "{start} + {step}·i mod {modulus} ≤ {limit}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_first_below_of_large_numbers_is_exact() {
        let modulus = 1u64 << 63;
        // 3·i is 1 less than a multiple of 2^63, or 2 less.
        let i = first_below(1, 3, modulus, 0).unwrap();
        assert_eq!((1 + 3 * i) % u128::from(modulus), 0);
        assert_eq!(first_below(1, 2, modulus, 0), None);
        assert_eq!(first_below(modulus - 1, 1, modulus, 0), Some(1));
        assert_eq!(first_below(5, modulus - 1, modulus, 2), Some(3));
    }
}
