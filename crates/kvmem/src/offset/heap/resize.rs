//! *Resize*: a range or the space becomes longer or shorter, in place.

use std::ops::Range;

use super::heap::Heap;
use super::ranges::Placed;
use crate::offset::error::SpaceError;

impl Heap {
    /// Frees the tail of a used range: it is `new_size` bytes afterwards, `0 < new_size ≤ size`.
    /// Returns `None` if no node is left. O(1).
    pub(crate) fn shrink(&mut self, placed: Placed, size: u64, new_size: u64) -> Option<()> {
        if new_size == size {
            return Some(());
        }
        self.has_free_nodes().then(|| self.cut_tail(placed, size, new_size))
    }

    fn cut_tail(&mut self, placed: Placed, size: u64, new_size: u64) {
        self.coalesce();
        self.fresh = false;
        self.ranges.cut_tail(placed, size, new_size);
    }

    /// Lengthens a used range into the free range behind it: it is `new_size ≥ size` bytes
    /// afterwards. On failure returns the greatest size that it could have. O(1).
    pub(crate) fn extend(&mut self, placed: Placed, size: u64, new_size: u64) -> Result<(), u64> {
        self.coalesce();
        self.ranges.extend(placed, size, new_size)
    }

    /// Frees the part `part` of the used range `placed` of `size` bytes. The rest before it keeps
    /// the node, the rest behind it gets a new one. Returns `None` and changes nothing if no node
    /// is left; the whole range can still be freed then. O(1).
    pub(crate) fn free_part(
        &mut self,
        placed: Placed,
        size: u64,
        part: Range<u64>,
    ) -> Option<Option<Placed>> {
        if part.end - part.start < size && !self.has_free_nodes() {
            return None;
        }
        let Range { start, end } = part;
        let behind = (end < placed.offset + size).then(|| self.ranges.divide(placed, end));
        if start > placed.offset {
            self.cut_tail(placed, end - placed.offset, start - placed.offset);
        } else {
            self.free(placed.node, start, end - start);
        }
        Some(behind)
    }

    /// Moves the end of the space up to `capacity`. O(1).
    pub(crate) fn grow(&mut self, capacity: u64) -> Result<(), SpaceError> {
        if capacity < self.capacity() {
            return Err(self.wrong_direction(capacity));
        }
        if !self.has_free_nodes() {
            return Err(SpaceError::TooManyRanges { ranges: self.ranges() });
        }
        self.coalesce();
        self.ranges.grow(capacity);
        self.policy.set_capacity(capacity);
        Ok(())
    }

    /// Moves the end of the space down to `capacity` ≥ 1, if nothing in use lies behind it. O(1 +
    /// free ranges removed); several only at boundaries.
    pub(crate) fn shrink_to(&mut self, capacity: u64) -> Result<(), SpaceError> {
        if capacity > self.capacity() {
            return Err(self.wrong_direction(capacity));
        }
        self.coalesce();
        let end_of_last = self.ranges.end_of_last();
        if self.ranges.start() + capacity < end_of_last {
            return Err(SpaceError::InUse { requested: capacity, end_of_last });
        }
        self.close_region();
        self.ranges.cut_end(capacity);
        self.policy.set_capacity(capacity);
        Ok(())
    }

    fn wrong_direction(&self, requested: u64) -> SpaceError {
        SpaceError::WrongDirection { capacity: self.capacity(), requested }
    }
}
