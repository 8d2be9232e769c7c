//! *Slots*: in a space of a handful of objects, an object begins where a slot does.
//!
//! The [placement policy](crate::offset::placement::PlacementPolicy) decides whether there are
//! slots, and how long they are.

use std::ops::Range;

use super::chunked_table::NIL;
use super::heap::Heap;
use super::ranges::{Placed, aligned_start};

/// Holes examined, tightest bins first.
const MAX_SLOT_LOOKS: usize = 24;

impl Heap {
    /// Allocates `size` bytes at the start of a free slot, unless the first hole of its own list is
    /// exact. The space is divided into slots of `slot ≥ size` bytes, so an object freed in one
    /// leaves room for the next. O(1).
    pub(super) fn fit_slot(&mut self, size: u64, slot: u64) -> Option<Placed> {
        let (bins, lists) = (self.ranges.bins(), self.ranges.bins().lists());
        let first = lists.first(lists.list_of(size));
        if first != NIL && bins[first].size == size {
            return None;
        }
        let origin = self.ranges.start();
        let slot_start = |id: u32| {
            let Range { start, end } = bins[id].range();
            Some((id, origin + aligned_start(start - origin..end - origin, slot, slot)?))
        };
        let (id, start) = lists.holes_from(slot).take(MAX_SLOT_LOOKS).find_map(slot_start)?;
        Some(self.ranges.take_at(id, start, size))
    }
}
