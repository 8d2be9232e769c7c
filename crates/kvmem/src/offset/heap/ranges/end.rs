//! *End*: the end of the space, as it moves.

use super::super::bins::Hole;
use super::super::chunked_table::NIL;
use super::chain::SENTINEL;
use super::range_table::RangeTable;
use super::runs::NO_BOUNDARY;

impl RangeTable {
    /// Creates the table of an empty space of `capacity` ≥ 1 bytes, for at most `max_ranges`
    /// ranges, used and free.
    pub(crate) fn new(capacity: u64, boundary: Option<u64>, max_ranges: u32) -> Self {
        let mut ranges = RangeTable::without_ranges(capacity, boundary, max_ranges);
        ranges.append_free(0, capacity);
        ranges
    }

    /// Adds the free bytes `[start, end)` behind the last range.
    fn append_free(&mut self, start: u64, end: u64) {
        let edge = match self.runs.boundary {
            NO_BOUNDARY => end,
            boundary => start.checked_next_multiple_of(boundary).map_or(end, |edge| edge.min(end)),
        };
        if start < edge {
            let node = self.chain.insert_before(SENTINEL, start);
            self.release(node, start, edge - start);
        }
        if edge < end {
            match self.runs.wilderness {
                NIL => {
                    let node = self.chain.insert_before(SENTINEL, edge);
                    let id = self.bins.insert_held_back(Hole::new(edge, end - edge, node));
                    self.chain.set_free(node, id);
                    self.runs.wilderness = id;
                }
                wilderness => self.bins[wilderness].size += end - edge,
            }
        }
    }

    /// Moves the end of the space up to `capacity`. O(1).
    pub(crate) fn grow(&mut self, capacity: u64) {
        let start = self.capacity;
        self.set_capacity(capacity);
        match self.runs.wilderness {
            NIL => self.append_free(start, capacity),
            wilderness => self.bins[wilderness].size += capacity - start,
        }
    }

    /// Moves the end of the space down to `capacity` ≥ 1, behind which nothing is in use. O(1 +
    /// free ranges removed); several only at boundaries.
    pub(crate) fn cut_end(&mut self, capacity: u64) {
        while let last = self.chain[SENTINEL].prev
            && let Some(id) = self.chain[last].hole()
            && let Hole { offset, .. } = self.bins[id]
            && self.bins[id].end() > capacity
        {
            if offset < capacity {
                self.cut_hole(id, capacity - offset);
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
        self.set_capacity(capacity);
    }

    fn cut_hole(&mut self, id: u32, size: u64) {
        if id == self.runs.wilderness {
            self.bins[id].size = size;
        } else {
            let offset = self.bins[id].offset;
            self.bins.change(id, offset, size);
        }
    }

    /// Returns one past the last byte in use.
    pub(crate) fn end_of_last(&self) -> u64 {
        let mut end = self.capacity;
        let mut node = self.chain[SENTINEL].prev;
        while let Some(id) = self.chain[node].hole() {
            end = self.bins[id].offset;
            node = self.chain[node].prev;
        }
        end
    }

    /// Moves the end of the space, as the sentinel stores it.
    fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.chain.set_end(capacity);
    }
}
