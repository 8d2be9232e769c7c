//! *Heap check*: that of the [range table](RangeTable::check), which numbers the invariants, with
//! nothing deferred.

use super::heap::Heap;
use super::ranges::Placed;
#[cfg(doc)]
use super::ranges::RangeTable;
use crate::offset::error::CheckError;

impl Heap {
    /// Checks that a range is used and has this length.
    pub(crate) fn check_used(&self, placed: Placed, size: u64) -> Result<(), CheckError> {
        let Placed { node, offset } = placed;
        let range = offset..offset + size;
        if self.ranges.is_used(node) && self.range_of(node) == range {
            return Ok(());
        }
        let what = format!("node {node} is kept as {range:?}, which is no range in use");
        Err(CheckError { invariant: 3, what })
    }

    /// Checks invariants 1 to 8. O(ranges + bins).
    pub(crate) fn check(&mut self) -> Result<(), CheckError> {
        self.coalesce();
        self.ranges.check()
    }
}
