//! *Boundary and bounds*: edges that no allocation straddles, and the end of the space as it moves.
//!
//! A DMA consumer registers memory in chunks; a range that lies across two chunks has no key. With a boundary *B*,
//! no used range crosses a multiple of *B*. Free ranges do not join across one either, so that every binned hole
//! lies within one *segment* of *B* bytes and the search needs to know nothing of edges. What was never used is not
//! cut up in advance: it is one hole, the *virgin*, that begins at an edge, reaches to the end of the space and is
//! held back. A request that finds no room elsewhere opens its first segment; a last segment that is wholly free
//! again goes back to it.

use super::bins::Hole;
use super::error::SpaceError;
use super::heap::{Heap, NO_BOUNDARY, WALL};
use super::table::NIL;

impl Heap {
    /// Opens the first segment of the virgin if it is long enough for `size` bytes; says whether it did.
    pub(super) fn open_segment(&mut self, size: u64) -> bool {
        if self.virgin == NIL {
            return false;
        }
        let Hole { offset, size: rest, node, .. } = self.bins.holes[self.virgin];
        let segment = rest.min(self.boundary);
        if segment < size {
            return false;
        }
        if rest == segment {
            self.bins.push(self.virgin);
            self.virgin = NIL;
            return true;
        }
        let opened = self.link_used_before(node, offset);
        let id = self.bins.insert(Hole::new(offset, segment, opened));
        self.set_free(opened, id);
        let virgin = &mut self.bins.holes[self.virgin];
        (virgin.offset, virgin.size) = (offset + segment, rest - segment);
        true
    }

    /// Where an aligned range of `size` bytes would begin in the virgin, if one of its segments has room for it. Found by
    /// arithmetic, before any is opened: O(1) unless boundary and alignment share few factors; then as many steps as it
    /// takes for their multiples to fall together, or to the end of the space.
    pub(super) fn virgin_start(&self, size: u64, align: u64) -> Option<u64> {
        if self.virgin == NIL || size > self.boundary {
            return None;
        }
        let Hole { offset, size: rest, .. } = self.bins.holes[self.virgin];
        let (end, boundary) = (offset + rest, self.boundary);
        let shared = 1 << align.trailing_zeros().min(boundary.trailing_zeros());
        let mut start = offset.checked_next_multiple_of(align)?;
        for _ in 0..=align.max(boundary) / shared {
            if start >= end || end - start < size {
                return None;
            }
            let within = start % boundary;
            if boundary - within >= size {
                return Some(start);
            }
            start = (start - within).checked_add(boundary)?.checked_next_multiple_of(align)?;
        }
        None
    }

    /// Opens the segments of the virgin up to the one that contains `start`; returns that one's hole. `None`: the books are
    /// full. O(segments opened).
    pub(super) fn open_segments_to(&mut self, start: u64) -> Option<u32> {
        while self.virgin != NIL && self.bins.holes[self.virgin].offset <= start {
            if !self.has_names() {
                return None;
            }
            self.open_segment(1);
        }
        let behind = if self.virgin == NIL { WALL } else { self.bins.holes[self.virgin].node };
        self.nodes[self.nodes[behind].prev].hole()
    }

    /// Takes wholly free segments at the end of the space back into the virgin. O(1) amortized: each was opened once.
    pub(super) fn return_segments(&mut self) {
        if self.virgin == NIL {
            let Some(id) = self.nodes[self.nodes[WALL].prev].hole() else { return };
            let hole = self.bins.holes[id];
            if !hole.is_binned() || !self.is_edge(hole.offset) {
                return;
            }
            self.bins.pull(id);
            self.virgin = id;
        }
        loop {
            let Hole { offset, node, .. } = self.bins.holes[self.virgin];
            let Some(id) = self.nodes[self.nodes[node].prev].hole() else { return };
            let hole = self.bins.holes[id];
            if !hole.is_binned() || hole.size != self.boundary {
                return;
            }
            debug_assert_eq!(hole.end(), offset);
            self.bins.remove(id);
            self.unlink(hole.node);
            let virgin = &mut self.bins.holes[self.virgin];
            virgin.offset = hole.offset;
            virgin.size += hole.size;
        }
    }

    /// Books `[start, end)` behind the last range as free.
    pub(super) fn append_free(&mut self, start: u64, end: u64) {
        let edge = match self.boundary {
            NO_BOUNDARY => end,
            boundary => start.checked_next_multiple_of(boundary).map_or(end, |edge| edge.min(end)),
        };
        if start < edge {
            let node = self.link_used_before(WALL, start);
            self.release(node, start, edge - start);
        }
        if edge < end {
            match self.virgin {
                NIL => {
                    let node = self.link_used_before(WALL, edge);
                    let id = self.bins.insert_held_back(Hole::new(edge, end - edge, node));
                    self.set_free(node, id);
                    self.virgin = id;
                }
                virgin => self.bins.holes[virgin].size += end - edge,
            }
        }
    }

    /// Moves the end of the space up to `capacity`. O(1).
    pub(crate) fn grow(&mut self, capacity: u64) -> Result<(), SpaceError> {
        if capacity < self.capacity {
            return Err(SpaceError::WrongDirection { capacity: self.capacity, asked: capacity });
        }
        if !self.has_names() {
            return Err(SpaceError::BooksFull { ranges: self.ranges() });
        }
        self.settle();
        let start = self.capacity;
        self.set_capacity(capacity);
        if self.virgin != NIL {
            self.bins.holes[self.virgin].size += capacity - start;
        } else {
            self.append_free(start, capacity);
        }
        Ok(())
    }

    /// Moves the end of the space down to `capacity` ≥ 1, if nothing in use lies behind it. O(1 + free ranges given
    /// up, which are several only if they stand at boundaries).
    pub(crate) fn shrink_to(&mut self, capacity: u64) -> Result<(), SpaceError> {
        if capacity > self.capacity {
            return Err(SpaceError::WrongDirection { capacity: self.capacity, asked: capacity });
        }
        self.close_nursery();
        let end_of_last = self.end_of_last();
        if capacity < end_of_last {
            return Err(SpaceError::InUse { asked: capacity, end_of_last });
        }
        while let last = self.nodes[WALL].prev
            && let Some(id) = self.nodes[last].hole()
            && let Hole { offset, .. } = self.bins.holes[id]
            && self.bins.holes[id].end() > capacity
        {
            if offset < capacity {
                self.cut_end(id, capacity - offset);
                break;
            }
            if id == self.virgin {
                self.bins.remove_held_back(id);
                self.virgin = NIL;
            } else {
                self.bins.remove(id);
            }
            self.unlink(last);
        }
        self.set_capacity(capacity);
        Ok(())
    }

    fn cut_end(&mut self, id: u32, size: u64) {
        if id == self.virgin {
            self.bins.holes[id].size = size;
        } else {
            let offset = self.bins.holes[id].offset;
            self.bins.change(id, offset, size);
        }
    }

    /// One past the last byte in use.
    fn end_of_last(&self) -> u64 {
        let mut end = self.capacity;
        let mut node = self.nodes[WALL].prev;
        while let Some(id) = self.nodes[node].hole() {
            end = self.bins.holes[id].offset;
            node = self.nodes[node].prev;
        }
        end
    }
}
