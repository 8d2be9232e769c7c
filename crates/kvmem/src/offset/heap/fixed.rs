//! *Fixed*: requests for one certain range, as a program makes them that restores a space from its
//! own record.

use std::ops::Range;

use super::heap::Heap;
use super::ranges::Placed;
use crate::offset::error::AllocError;

impl Heap {
    /// Allocates exactly `range`, which is not empty, if it is part of one free range and crosses
    /// no boundary.
    ///
    /// O(1 + ranges behind it).
    pub(crate) fn allocate_at(&mut self, range: Range<u64>) -> Result<Placed, AllocError> {
        self.close_region();
        if !self.has_free_nodes() {
            return Err(AllocError::TooManyRanges { ranges: self.ranges() });
        }
        let Range { start, end } = range;
        let not_free = AllocError::NotFree { start, end, capacity: self.capacity() };
        self.ranges.take_range(range).ok_or(not_free)
    }
}
