//! *End*: where the space begins and ends, and its end as it moves.

use std::ops::Range;

use super::super::bins::Hole;
use super::super::chunked_table::NIL;
use super::chain::SENTINEL;
use super::range_table::RangeTable;
use super::runs::NO_BOUNDARY;

impl RangeTable {
    /// Creates the table of an empty space, whose bytes are the numbers `space`, at least one, for
    /// at most `max_ranges` ranges, used and free.
    pub(crate) fn new(space: Range<u64>, boundary: Option<u64>, max_ranges: u32) -> Self {
        let mut ranges = RangeTable::without_ranges(&space, boundary, max_ranges);
        ranges.append_free(space.start, space.end);
        ranges
    }

    /// Returns the first byte of the space.
    pub(crate) fn start(&self) -> u64 {
        self.end() - self.capacity
    }

    /// Returns one past the last byte of the space.
    pub(super) fn end(&self) -> u64 {
        self.chain[SENTINEL].word()
    }

    /// Adds the free bytes `[start, end)` behind the last range, which is no wilderness.
    fn append_free(&mut self, start: u64, end: u64) {
        let edge = match self.runs.boundary {
            NO_BOUNDARY => end,
            boundary => start.checked_next_multiple_of(boundary).map_or(end, |edge| edge.min(end)),
        };
        if start < edge {
            let node = self.chain.insert_before(SENTINEL, start);
            self.release(node, start, edge - start);
        }
        // There is no wilderness: a last segment that is wholly free is one.
        if edge < end {
            let node = self.chain.insert_before(SENTINEL, edge);
            let id = self.bins.insert_held_back(Hole::new(edge, end - edge, node));
            self.chain.set_free(node, id);
            self.runs.wilderness = id;
        }
    }

    /// Moves the end of the space up, to a length of `capacity`. O(1).
    pub(crate) fn grow(&mut self, capacity: u64) {
        let end = self.end();
        let new_end = self.start() + capacity;
        self.set_end(new_end);
        match self.runs.wilderness {
            NIL => self.append_free(end, new_end),
            wilderness => self.bins[wilderness].size += new_end - end,
        }
    }

    /// Moves the end of the space down, to a length of `capacity` ≥ 1, behind which nothing is in
    /// use. O(1 + free ranges removed); several only at boundaries.
    pub(crate) fn cut_end(&mut self, capacity: u64) {
        let new_end = self.start() + capacity;
        while let last = self.chain[SENTINEL].prev
            && let Some(id) = self.chain[last].hole()
            && let Hole { offset, .. } = self.bins[id]
            && self.bins[id].end() > new_end
        {
            if offset < new_end {
                self.cut_hole(id, new_end - offset);
                break;
            }
            if id == self.runs.wilderness {
                self.bins.remove_held_back(id);
                self.runs.wilderness = NIL;
            } else {
                self.bins.remove(id);
            }
            self.chain.remove(last);
        }
        self.set_end(new_end);
    }

    fn cut_hole(&mut self, id: u32, size: u64) {
        if id == self.runs.wilderness {
            self.bins[id].size = size;
        } else {
            let offset = self.bins[id].offset;
            self.bins.shrink(id, offset, size);
        }
    }

    /// Returns one past the last byte in use.
    pub(crate) fn end_of_last(&self) -> u64 {
        let mut end = self.end();
        let mut node = self.chain[SENTINEL].prev;
        while let Some(id) = self.chain[node].hole() {
            end = self.bins[id].offset;
            node = self.chain[node].prev;
        }
        end
    }

    /// Moves the end of the space, which the sentinel stores; the start stays.
    fn set_end(&mut self, end: u64) {
        self.capacity = end - self.start();
        self.chain.set_end(end);
    }
}
