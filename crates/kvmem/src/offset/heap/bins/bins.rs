//! *Bins*: the holes by size, and the size of the greatest one.
//!
//! `largest` is the size of the greatest binned hole, stored with the number of holes known to have
//! that size. When the last of these is removed, the list of the greatest sizes is read again.

use std::hint::select_unpredictable;
use std::ops::{Index, IndexMut};

use super::super::chunked_table::NIL;
use super::bin_sizes::{BINS, EXACT, bin_floor};
use super::holes::{Hole, NULL_HOLE, RUN};
use super::lists::{HoleLists, LIST_MAX, SPLIT, UNIFORM};

/// All holes, binned or held back.
pub(crate) struct Bins {
    lists: HoleLists,
    /// The greatest binned size and how many holes have it, or some of them. If the count is 0, an
    /// upper bound of that size.
    largest: u64,
    largest_count: u32,
}

impl Bins {
    pub(crate) fn new() -> Self {
        Bins { lists: HoleLists::new(), largest: 0, largest_count: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lists.bytes()
    }

    /// Returns the lists of the binned holes, to search them.
    #[inline(always)]
    pub(crate) fn lists(&self) -> &HoleLists {
        &self.lists
    }

    /// Returns the number of holes, binned or held back.
    #[inline]
    pub(crate) fn live(&self) -> u32 {
        self.lists.holes.live()
    }

    /// Returns whether the record of a hole exists, in use or not.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.lists.holes.contains(id)
    }

    /// Creates a hole and puts it into its bin.
    #[inline(always)]
    pub(crate) fn insert(&mut self, hole: Hole) -> u32 {
        let bin = bin_floor(hole.size);
        self.gain(hole.size);
        // The record is written once.
        let Some(next) = self.count_listed(bin, hole.size) else {
            let id = self.lists.holes.insert(hole);
            self.lists.list_in_split(id, bin);
            return id;
        };
        let id = self.lists.holes.insert(Hole { list_id: bin, prev: NIL, next, ..hole });
        self.put_first(bin, id, next);
        id
    }

    /// Creates a hole that is held back from the bins.
    pub(crate) fn insert_held_back(&mut self, hole: Hole) -> u32 {
        self.lists.holes.insert(hole)
    }

    /// Removes a hole that is held back.
    pub(crate) fn remove_held_back(&mut self, id: u32) -> Hole {
        self.lists.holes.remove(id)
    }

    /// Returns how many records should move down after `frees` frees.
    #[inline]
    pub(crate) fn moves_due(&self, frees: usize) -> usize {
        self.lists.holes.moves_due(frees)
    }

    /// Moves one record to a free slot further down; returns its old and new number. The list of
    /// runs is not corrected. O(1).
    pub(crate) fn move_slot_down(&mut self) -> Option<(u32, u32)> {
        let lists = &mut self.lists;
        let (old, new) = lists.holes.move_slot_down()?;
        let Hole { prev, next, .. } = lists.holes[new];
        let list_id = lists.list_id_of(new);
        if list_id < RUN {
            match prev {
                NIL => *lists.head_mut(list_id) = new,
                _ => lists.holes[prev].next = new,
            }
            if next != NIL {
                lists.holes[next].prev = new;
            }
        }
        Some((old, new))
    }

    /// Removes the hole from its bin and frees its record.
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Hole {
        let hole = self.lists.holes[id];
        self.remove_read(id, hole);
        hole
    }

    /// Removes the hole, whose record has been read, from its bin and frees the record.
    #[inline(always)]
    pub(crate) fn remove_read(&mut self, id: u32, hole: Hole) {
        self.remove_uncounted(id, hole);
        self.lose(hole.size);
    }

    /// Removes the hole, whose record has been read, for another one to absorb it.
    #[inline(always)]
    pub(crate) fn remove_uncounted(&mut self, id: u32, hole: Hole) {
        self.lists.holes.free(id);
        self.unlist(hole);
    }

    /// Changes the binned hole to `[offset, offset + size)`, which is longer than before.
    ///
    /// The hole may have absorbed one that was removed [uncounted](Self::remove_uncounted). If
    /// either had the greatest size, this one exceeds it, so nothing is counted down.
    #[inline(always)]
    pub(crate) fn grow(&mut self, id: u32, offset: u64, size: u64) {
        self.change(id, offset, size);
        self.gain(size);
    }

    /// Changes the binned hole to `[offset, offset + size)`, with `size > 0`, which is shorter than
    /// before: it is none of the greatest afterwards.
    #[inline(always)]
    pub(crate) fn shrink(&mut self, id: u32, offset: u64, size: u64) {
        let before = self.change(id, offset, size);
        self.lose(before);
    }

    /// Changes a hole without counting it; returns its size before.
    #[inline(always)]
    fn change(&mut self, id: u32, offset: u64, size: u64) -> u64 {
        let hole = &mut self.lists.holes[id];
        let before = *hole;
        (hole.offset, hole.size) = (offset, size);
        let bin = bin_floor(size);
        // A uniform list holds one size only, and a split one list for each range of sizes.
        if before.list_id != bin || self.lists.lengths[bin as usize % BINS] >= UNIFORM {
            self.unlist(before);
            self.list(id, bin, size);
        }
        before.size
    }

    /// Puts a hole that was held back first into the list of its size.
    #[inline]
    pub(crate) fn push(&mut self, id: u32) {
        let size = self.lists.holes[id].size;
        self.list(id, bin_floor(size), size);
        self.gain(size);
    }

    /// Removes a hole from its bin and holds it back.
    #[inline]
    pub(crate) fn pull(&mut self, id: u32) {
        let hole = self.lists.holes[id];
        self.unlist(hole);
        self.lists.holes[id].hold_back();
        self.lose(hole.size);
    }

    /// Puts the hole of `size` bytes into the list of `bin`.
    #[inline(always)]
    fn list(&mut self, id: u32, bin: u32, size: u64) {
        let Some(next) = self.count_listed(bin, size) else {
            return self.lists.list_in_split(id, bin);
        };
        let hole = &mut self.lists.holes[id];
        (hole.list_id, hole.prev, hole.next) = (bin, NIL, next);
        self.put_first(bin, id, next);
    }

    /// Counts a hole of `size` bytes in the list of `bin`; returns the first hole there, or `NIL`.
    /// Returns `None` and counts nothing if the bin is split or at its limit.
    #[inline(always)]
    fn count_listed(&mut self, bin: u32, size: u64) -> Option<u32> {
        let lists = &mut self.lists;
        let (length, first) =
            (&mut lists.lengths[bin as usize % BINS], lists.heads[bin as usize % BINS]);
        if *length < LIST_MAX {
            *length += u8::from(bin >= EXACT);
        } else if *length != UNIFORM || lists.holes[first].size != size {
            return None;
        }
        Some(first)
    }

    /// Makes the hole the first of the list of `bin`, before `next`, which its record names.
    #[inline(always)]
    fn put_first(&mut self, bin: u32, id: u32, next: u32) {
        let lists = &mut self.lists;
        lists.heads[bin as usize % BINS] = id;
        if lists.lengths[bin as usize % BINS] == UNIFORM {
            lists.holes[next].prev = id;
        } else {
            lists.holes[or_null(next)].prev = id;
            lists.bitmap.mark(bin);
        }
    }

    /// Removes the hole from its list; its record is not read.
    #[inline(always)]
    fn unlist(&mut self, hole: Hole) {
        let lists = &mut self.lists;
        let Hole { size, prev, next, list_id, .. } = hole;
        if list_id as usize >= BINS {
            return lists.unlist_from_split((prev, next), list_id);
        }
        let length = lists.lengths[list_id as usize % BINS];
        if length == SPLIT {
            return lists.unlist_from_split((prev, next), lists.list_below(list_id, size));
        }
        if length < UNIFORM {
            // Without branches: where a hole is in a short list is unpredictable.
            let emptied = prev & next == NIL;
            let less = length.saturating_sub(u8::from(list_id >= EXACT));
            lists.lengths[list_id as usize % BINS] = select_unpredictable(emptied, 0, less);
            let head = &mut lists.heads[list_id as usize % BINS];
            *head = select_unpredictable(prev == NIL, next, *head);
            lists.holes[or_null(prev)].next = next;
            lists.holes[or_null(next)].prev = prev;
            lists.bitmap.unmark_if(emptied, list_id);
            return;
        }
        if prev != NIL {
            lists.holes[prev].next = next;
        } else {
            lists.heads[list_id as usize % BINS] = next;
        }
        if next != NIL {
            lists.holes[next].prev = prev;
        } else if prev == NIL {
            lists.unmark(list_id);
        }
    }

    // Both without branches: with mixed sizes they are unpredictable.
    #[inline]
    fn gain(&mut self, size: u64) {
        let kept = select_unpredictable(size > self.largest, 0, self.largest_count);
        self.largest_count = kept + u32::from(size >= self.largest);
        self.largest = self.largest.max(size);
    }

    #[inline]
    fn lose(&mut self, size: u64) {
        self.largest_count = self.largest_count.saturating_sub(u32::from(size == self.largest));
    }

    /// Returns the greatest binned size, or 0 if nothing is binned.
    ///
    /// O(1): when no hole is known to have the greatest size, up to [`LIST_MAX`] holes of the list
    /// of the greatest sizes are read.
    #[inline]
    pub(crate) fn largest(&mut self) -> u64 {
        if self.largest_count == 0 {
            self.refresh_largest();
        }
        self.largest
    }

    #[inline(never)]
    fn refresh_largest(&mut self) {
        (self.largest, self.largest_count) = (0, 0);
        let Some(list_id) = self.lists.top() else { return };
        let mut id = self.lists.first(list_id);
        let Hole { size, next, .. } = self.lists.holes[id];
        if next == NIL || self.lists.is_uniform(list_id) {
            // One is enough: the next time, another one is found in as few steps.
            return (self.largest, self.largest_count) = (size, 1);
        }
        for _ in 0..LIST_MAX {
            if id == NIL {
                break;
            }
            let Hole { size, next, .. } = self.lists.holes[id];
            self.gain(size);
            id = next;
        }
    }

    /// Returns the greatest binned size, or an upper bound of it.
    #[inline(always)]
    pub(crate) fn largest_bound(&self) -> u64 {
        self.largest
    }

    /// Returns whether a hole of at least `size` bytes is known without reading a list.
    #[inline(always)]
    pub(crate) fn has_hole_of(&self, size: u64) -> bool {
        self.largest >= size && self.largest_count > 0
    }

    /// Returns the greatest binned size if it is known without reading a list.
    pub(crate) fn largest_if_known(&self) -> Option<u64> {
        (self.largest_count > 0).then_some(self.largest)
    }

    /// Checks that lists and bitmaps agree; returns the number of binned holes.
    pub(crate) fn check(&self) -> Result<u32, String> {
        self.lists.check()
    }

    /// Returns the lists, to change their limits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn lists_mut(&mut self) -> &mut HoleLists {
        &mut self.lists
    }
}

/// Returns the hole, or for [`NIL`] the one whose links are never read.
#[inline(always)]
fn or_null(id: u32) -> u32 {
    select_unpredictable(id == NIL, NULL_HOLE, id)
}

impl Index<u32> for Bins {
    type Output = Hole;

    #[inline]
    fn index(&self, id: u32) -> &Hole {
        &self.lists.holes[id]
    }
}

/// Changes holes that are held back. Only [`Bins`] itself changes the size of a binned one.
impl IndexMut<u32> for Bins {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Hole {
        &mut self.lists.holes[id]
    }
}
