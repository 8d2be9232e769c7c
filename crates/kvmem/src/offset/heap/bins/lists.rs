//! *Hole lists*: every binned hole is in the list of its size.
//!
//! Any number of holes can have about the same size. If all holes of a bin have the same size, its
//! list is *uniform* and has no limit. Otherwise a bin that would exceed [`LIST_MAX`] holes is
//! [split](super::splits) into 64 narrower lists, and these likewise. Every list has a number, its
//! *list id*; below [`BINS`] it is the bin. A list is either short or uniform, so no call reads
//! more than [`LIST_MAX`] holes of one list.

use super::super::chunked_table::NIL;
use super::bin_sizes::{BINS, bin_floor, bin_size_min, bin_width_log2};
use super::bitmap::BinBitmap;
use super::holes::{Hole, Holes};
use super::splits::{Splits, split_of};

/// Upper bound of the holes in a list, unless all of them have the same size. Where a list of this
/// length is split, each hole that comes and goes touches two more lines.
pub(super) const LIST_MAX: u8 = 192;
/// Replaces the length of a uniform list: all its holes have the same size.
pub(super) const UNIFORM: u8 = u8::MAX - 1;
/// Replaces the length of a list that is split.
pub(super) const SPLIT: u8 = u8::MAX;

/// The holes, and the lists of those that are binned.
pub(crate) struct HoleLists {
    pub(super) holes: Holes,
    /// First hole of each list, or the number of the split that replaces it.
    pub(super) heads: Box<[u32; BINS]>,
    /// Length of each list (0 for exact bins below their limit), or [`UNIFORM`], or [`SPLIT`].
    pub(super) lengths: Box<[u8; BINS]>,
    pub(super) bitmap: BinBitmap,
    pub(super) splits: Splits,
}

impl HoleLists {
    pub(super) fn new() -> Self {
        HoleLists {
            holes: Holes::new(),
            heads: Box::new([NIL; BINS]),
            lengths: Box::new([0; BINS]),
            bitmap: BinBitmap::new(),
            splits: Splits::new(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.holes.bytes()
            + self.splits.bytes()
            + size_of_val(&*self.heads)
            + size_of_val(&*self.lengths)
    }

    /// Returns the list for holes of `size` bytes, empty or not.
    #[inline]
    pub(crate) fn list_of(&self, size: u64) -> u32 {
        let bin = bin_floor(size);
        if self.lengths[bin as usize % BINS] == SPLIT { self.list_below(bin, size) } else { bin }
    }

    /// Returns the list for `size` within a bin that is split.
    #[inline(never)]
    pub(super) fn list_below(&self, bin: u32, size: u64) -> u32 {
        self.splits.list_for(self.first(bin), size)
    }

    /// Returns the list that contains a hole. A record may name the bin although its uniform list
    /// has become part of a split since.
    #[inline]
    pub(crate) fn list_id_of(&self, id: u32) -> u32 {
        let Hole { list_id, size, .. } = self.holes[id];
        match self.lengths.get(list_id as usize) {
            Some(&SPLIT) => self.list_below(list_id, size),
            _ => list_id,
        }
    }

    /// Returns whether a list of a bin is uniform.
    #[inline]
    pub(crate) fn is_uniform(&self, list_id: u32) -> bool {
        self.lengths.get(list_id as usize) == Some(&UNIFORM)
    }

    /// Returns whether all holes of a list have the same size.
    pub(crate) fn is_of_one_size(&self, list_id: u32) -> bool {
        self.is_uniform(list_id) || self.sizes_of(list_id).1 == 0
    }

    /// Returns the least size of a list, and the binary logarithm of its width.
    pub(super) fn sizes_of(&self, list_id: u32) -> (u64, u32) {
        if (list_id as usize) < BINS {
            return (bin_size_min(list_id), bin_width_log2(list_id));
        }
        let (number, list) = split_of(list_id);
        let split = self.splits.get(number);
        (split.min_of(list), split.width_log2)
    }

    /// Returns the next non-empty list of greater sizes.
    #[inline]
    pub(crate) fn above(&self, list_id: u32) -> Option<u32> {
        if list_id as usize >= BINS {
            return self.above_in_split(list_id);
        }
        let bin = self.bitmap.first_from(list_id + 1)?;
        Some(if self.lengths[bin as usize % BINS] == SPLIT { self.lowest(bin) } else { bin })
    }

    #[inline(never)]
    fn above_in_split(&self, list_id: u32) -> Option<u32> {
        self.splits.above(list_id).map_or_else(|bin| self.above(bin), Some)
    }

    /// Returns the next non-empty list of smaller sizes.
    pub(crate) fn below(&self, list_id: u32) -> Option<u32> {
        let bin = match list_id as usize >= BINS {
            true => match self.splits.below(list_id) {
                Ok(found) => return Some(found),
                Err(bin) => bin,
            },
            false => list_id,
        };
        self.bitmap.last_below(bin).map(|bin| self.highest(bin))
    }

    /// Returns the non-empty list of the greatest sizes.
    pub(crate) fn top(&self) -> Option<u32> {
        self.bitmap.last().map(|bin| self.highest(bin))
    }

    /// Returns the non-empty list of the least sizes in a bin that is split.
    #[inline(never)]
    fn lowest(&self, bin: u32) -> u32 {
        self.splits.lowest(self.first(bin))
    }

    /// Returns the non-empty list of the greatest sizes in a bin.
    #[inline]
    fn highest(&self, bin: u32) -> u32 {
        match self.lengths[bin as usize % BINS] {
            SPLIT => self.splits.highest(self.first(bin)),
            _ => bin,
        }
    }

    /// Returns the first hole of a list, or `NIL`.
    #[inline]
    pub(crate) fn first(&self, list_id: u32) -> u32 {
        match self.heads.get(list_id as usize) {
            Some(&head) => head,
            None => self.splits.head(list_id),
        }
    }

    #[inline]
    pub(super) fn head_mut(&mut self, list_id: u32) -> &mut u32 {
        if (list_id as usize) < BINS {
            &mut self.heads[list_id as usize]
        } else {
            self.splits.head_mut(list_id)
        }
    }

    /// Returns the holes of a list, in list order.
    #[inline]
    pub(crate) fn holes_of(&self, list_id: u32) -> impl Iterator<Item = u32> {
        self.listed_from(self.first(list_id))
    }

    /// Returns all binned holes, from the list of `size` upwards.
    pub(crate) fn holes_from(&self, size: u64) -> impl Iterator<Item = u32> {
        let lists = std::iter::successors(Some(self.list_of(size)), |&list_id| self.above(list_id));
        lists.flat_map(|list_id| self.holes_of(list_id))
    }

    /// Returns all binned holes, from the list of `size` downwards.
    pub(crate) fn holes_down_from(&self, size: u64) -> impl Iterator<Item = u32> {
        let lists = std::iter::successors(Some(self.list_of(size)), |&list_id| self.below(list_id));
        lists.flat_map(|list_id| self.holes_of(list_id))
    }

    /// Returns the holes behind `id` in its list.
    #[inline]
    pub(crate) fn after(&self, id: u32) -> impl Iterator<Item = u32> {
        self.listed_from(self.holes[id].next)
    }

    /// Returns the hole `id`, if it is not `NIL`, and those behind it in its list.
    #[inline]
    pub(crate) fn listed_from(&self, mut id: u32) -> impl Iterator<Item = u32> {
        std::iter::from_fn(move || {
            let this = id;
            (this != NIL).then(|| {
                id = self.holes[this].next;
                this
            })
        })
    }

    /// Links the hole as the first of the list `list_id`.
    pub(super) fn link_first(&mut self, id: u32, list_id: u32) {
        let next = std::mem::replace(self.head_mut(list_id), id);
        let hole = &mut self.holes[id];
        (hole.list_id, hole.prev, hole.next) = (list_id, NIL, next);
        if next != NIL {
            self.holes[next].prev = id;
        }
    }

    /// Marks a bin as empty.
    #[inline(always)]
    pub(super) fn unmark(&mut self, bin: u32) {
        self.lengths[bin as usize % BINS] = 0;
        self.bitmap.unmark(bin);
    }
}
