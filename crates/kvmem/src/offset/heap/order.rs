//! *Order*: a space into which nothing has been freed yet allocates its ranges one after the other,
//! from the low end up.
//!
//! A store that restarts rebuilds its index in this way. It creates an allocator for the same
//! space, allocates the sizes of its objects in the order of their offsets, with fillers for the
//! gaps between them, and expects the old offsets. The order is therefore a promise, for every
//! [placement](super::placement) and every size:
//!
//! - The space is *fresh* from its creation to the first free, shrink included. Requests that fail
//!   free nothing.
//! - A fresh space with one free range allocates each request at the low end of that range.
//!
//! Plain requests leave one free range. An aligned request may leave a second one before it, and a
//! request that does not fit before the next boundary leaves a second one behind the last range.
//! Until such a gap is filled, the holes that fit best are cut. Neither the small-object region nor
//! slots apply in a fresh space.
//!
//! A space that becomes empty again is not fresh: otherwise small objects would lie between large
//! ones after each time. Where bimodal traffic empties the space now and then, that costs up to a
//! tenth of it.

use super::heap::Heap;
use super::ranges::Placed;
use crate::offset::placement::HoleEnd;

impl Heap {
    /// Allocates `size` bytes at the low end of the only free range. Returns `None` if there are
    /// several, or if that one is too short. O(1).
    // Out of line: requests come here only until the first free.
    #[inline(never)]
    pub(super) fn allocate_in_order(&mut self, size: u64) -> Option<Placed> {
        if self.free_before_wilderness() == 0 {
            self.ranges.open_segment(size);
        }
        if self.free_before_wilderness() != 1 {
            return None;
        }
        let bins = self.ranges.bins();
        let id = bins.lists().first(bins.lists().top()?);
        (bins[id].size >= size).then(|| self.ranges.take(id, size, HoleEnd::Low))
    }

    /// Returns the number of free ranges without the wilderness.
    fn free_before_wilderness(&self) -> u32 {
        self.ranges.bins().live() - u32::from(self.ranges.has_wilderness())
    }
}
