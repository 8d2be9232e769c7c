//! *Bins*: the free ranges, found by size in a fixed number of steps.
//!
//! A free range is a [`Hole`]. Holes of about the same size share a bin; a bin is a list, last in
//! first out. Every octave of sizes is divided into 64 bins; each size below 64 has its own bin:
//!
//! ```text
//! size  0 1 2 … 63 | 64 65 … 127 | 128‥129 130‥131 … | … | 2^62‥ …
//! bin   0 1 2 … 63 | 64 65 … 127 | 128     129     … | … |
//!       octave 0     octave 1      octave 2                octave 57
//! ```
//!
//! A bin is at most 1/64 of its sizes wide, and bins below 128 are exact. Two levels of bitmap tell
//! which bins are non-empty: bit *o* of `coarse` iff octave *o* is, bit *m* of `fine[o]` iff bin
//! 64·*o* + *m* is. Two count-zeros find the next non-empty bin (Masmano et al., *TLSF: a new
//! dynamic memory allocator for real-time systems*, 2004). Unlike TLSF, which rounds up, the search
//! begins with the request's own bin.
//!
//! Any number of holes can have about the same size. If all holes of a bin have the same size, its
//! list is *uniform* and has no limit. Otherwise a bin that would exceed [`LIST_MAX`] holes is
//! [split](super::split) into 64 narrower lists, and these likewise. Every list has a number, its
//! *list id*; below [`BINS`] it is the bin. A list is either short or uniform, so no call reads
//! more than [`LIST_MAX`] holes of one list.
//!
//! `largest` is the size of the greatest hole, stored with the number of holes known to have that
//! size. When the last of these is removed, the list of the greatest sizes is read again.

use std::hint::select_unpredictable;

use super::super::table::NIL;
use super::holes::{Hole, Holes, RUN};
use super::splits::Splits;

const MANTISSA_BITS: u32 = 6;
pub(crate) const PER_OCTAVE: u32 = 1 << MANTISSA_BITS;
/// More than exist, so no index needs a check.
const OCTAVES: usize = 64;
/// Number of bins.
pub(crate) const BINS: usize = OCTAVES * PER_OCTAVE as usize;
/// Bins below this are one size wide.
const EXACT: u32 = 2 * PER_OCTAVE;
/// Upper bound of the holes in a list, unless all of them have the same size.
pub(crate) const LIST_MAX: u8 = 64;
/// Replaces the length of a uniform list: all its holes have the same size.
pub(crate) const UNIFORM: u8 = u8::MAX - 1;
/// Replaces the length of a list that is split.
pub(crate) const SPLIT: u8 = u8::MAX;

/// Returns the bin that contains `size` (the floor bin).
#[inline]
pub(crate) fn bin_floor(size: u64) -> u32 {
    if size < u64::from(PER_OCTAVE) {
        return size as u32;
    }
    let exponent = size.ilog2();
    let mantissa = (size >> (exponent - MANTISSA_BITS)) as u32 & (PER_OCTAVE - 1);
    (exponent - MANTISSA_BITS + 1) << MANTISSA_BITS | mantissa
}

/// Returns the octave of a bin, and its number within the octave.
#[inline]
fn split(bin: u32) -> (usize, u32) {
    ((bin >> MANTISSA_BITS) as usize % OCTAVES, bin & (PER_OCTAVE - 1))
}

/// Returns the least size in `bin`.
pub(crate) fn bin_size_min(bin: u32) -> u64 {
    let (octave, mantissa) = (bin >> MANTISSA_BITS, u64::from(bin & (PER_OCTAVE - 1)));
    if octave == 0 { mantissa } else { (mantissa + u64::from(PER_OCTAVE)) << (octave - 1) }
}

/// Returns the greatest size in `bin`.
pub(crate) fn bin_size_max(bin: u32) -> u64 {
    let width_log2 = (bin >> MANTISSA_BITS).saturating_sub(1);
    bin_size_min(bin) + ((1 << width_log2) - 1)
}

/// Returns the binary logarithm of the width of `bin`.
pub(crate) fn bin_width_log2(bin: u32) -> u32 {
    (bin >> MANTISSA_BITS).saturating_sub(1)
}

/// All holes, binned or held back.
pub(crate) struct Bins {
    pub(crate) holes: Holes,
    /// First hole of each list, or the number of the split that replaces it.
    pub(crate) heads: Box<[u32; BINS]>,
    /// Length of each list (0 for exact bins below their limit), or [`UNIFORM`], or [`SPLIT`].
    pub(crate) lengths: Box<[u8; BINS]>,
    fine: [u64; OCTAVES],
    coarse: u64,
    pub(crate) splits: Splits,
    /// First of the listed [runs](super::boundary), or `NIL`.
    runs: u32,
    /// The greatest binned size and how many holes have it, or some of them. If the count is 0, an
    /// upper bound of that size.
    largest: u64,
    largest_count: u32,
}

impl Bins {
    pub(crate) fn new() -> Self {
        Bins {
            holes: Holes::new(),
            heads: Box::new([NIL; BINS]),
            lengths: Box::new([0; BINS]),
            fine: [0; OCTAVES],
            coarse: 0,
            splits: Splits::new(),
            runs: NIL,
            largest: 0,
            largest_count: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.holes.bytes()
            + self.splits.bytes()
            + size_of_val(&*self.heads)
            + size_of_val(&*self.lengths)
    }

    /// Creates a hole and puts it into its bin.
    #[inline]
    pub(crate) fn insert(&mut self, hole: Hole) -> u32 {
        let id = self.holes.insert(hole);
        self.push(id);
        id
    }

    /// Creates a hole that is held back from the bins.
    pub(crate) fn insert_held_back(&mut self, hole: Hole) -> u32 {
        self.holes.insert(hole)
    }

    /// Removes a hole that is held back.
    pub(crate) fn remove_held_back(&mut self, id: u32) -> Hole {
        self.holes.remove(id)
    }

    /// Moves one record to a free slot further down; returns its old and new number. O(1).
    pub(crate) fn move_slot_down(&mut self) -> Option<(u32, u32)> {
        let (old, new) = self.holes.move_slot_down()?;
        let Hole { prev, next, .. } = self.holes[new];
        let list_id = self.list_id_of(new);
        if list_id <= RUN {
            match (prev, list_id) {
                (NIL, RUN) => self.runs = new,
                (NIL, _) => *self.head_mut(list_id) = new,
                _ => self.holes[prev].next = new,
            }
            if next != NIL {
                self.holes[next].prev = new;
            }
        }
        Some((old, new))
    }

    /// Removes the hole from its bin and frees its record.
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Hole {
        self.pull(id);
        self.holes.remove(id)
    }

    /// Changes the binned hole to `[offset, offset + size)`, with `size > 0`.
    #[inline(always)]
    pub(crate) fn change(&mut self, id: u32, offset: u64, size: u64) {
        let hole = &mut self.holes[id];
        let before = hole.size;
        (hole.offset, hole.size) = (offset, size);
        let bin = bin_floor(size);
        // A uniform list holds one size only, and a split one list for each range of sizes.
        if hole.list_id != bin || self.lengths[bin as usize % BINS] >= UNIFORM {
            self.unlist(id, before);
            self.list(id, bin, size);
        }
        self.lose(before);
        self.gain(size);
    }

    /// Puts a hole that was held back first into the list of its size.
    #[inline]
    pub(crate) fn push(&mut self, id: u32) {
        let size = self.holes[id].size;
        self.list(id, bin_floor(size), size);
        self.gain(size);
    }

    /// Removes a hole from its bin and holds it back.
    #[inline]
    pub(crate) fn pull(&mut self, id: u32) {
        let size = self.holes[id].size;
        self.unlist(id, size);
        self.holes[id].hold_back();
        self.lose(size);
    }

    /// Puts a hole that is held back first into the list of runs.
    pub(crate) fn list_run(&mut self, id: u32) {
        let next = std::mem::replace(&mut self.runs, id);
        let hole = &mut self.holes[id];
        (hole.list_id, hole.prev, hole.next) = (RUN, NIL, next);
        if next != NIL {
            self.holes[next].prev = id;
        }
    }

    /// Removes a hole from the list of runs, if it is in there; it stays held back.
    pub(crate) fn unlist_run(&mut self, id: u32) {
        let Hole { list_id, prev, next, .. } = self.holes[id];
        if list_id != RUN {
            return;
        }
        match prev {
            NIL => self.runs = next,
            _ => self.holes[prev].next = next,
        }
        if next != NIL {
            self.holes[next].prev = prev;
        }
        self.holes[id].hold_back();
    }

    /// Returns the run listed last, or `NIL`.
    #[inline]
    pub(crate) fn first_run(&self) -> u32 {
        self.runs
    }

    /// Returns the listed runs, the last listed first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = u32> {
        self.listed_from(self.runs)
    }

    /// Puts the hole of `size` bytes into the list of `bin`.
    #[inline(always)]
    fn list(&mut self, id: u32, bin: u32, size: u64) {
        let bin = bin % BINS as u32;
        let length = self.lengths[bin as usize];
        if length < LIST_MAX {
            self.lengths[bin as usize] = length + u8::from(bin >= EXACT);
        } else if length != UNIFORM || self.holes[self.heads[bin as usize]].size != size {
            return self.list_in_split(id, bin);
        }
        let next = std::mem::replace(&mut self.heads[bin as usize], id);
        let hole = &mut self.holes[id];
        (hole.list_id, hole.prev, hole.next) = (bin, NIL, next);
        if next != NIL {
            self.holes[next].prev = id;
        } else {
            let (octave, mantissa) = split(bin);
            self.fine[octave] |= 1 << mantissa;
            self.coarse |= 1 << octave;
        }
    }

    /// Links the hole as the first of the list `list_id`.
    pub(crate) fn link_first(&mut self, id: u32, list_id: u32) {
        let next = std::mem::replace(self.head_mut(list_id), id);
        let hole = &mut self.holes[id];
        (hole.list_id, hole.prev, hole.next) = (list_id, NIL, next);
        if next != NIL {
            self.holes[next].prev = id;
        }
    }

    /// Removes the hole of `size` bytes from its list.
    #[inline(always)]
    fn unlist(&mut self, id: u32, size: u64) {
        let list_id = self.holes[id].list_id;
        if list_id as usize >= BINS {
            return self.unlist_from_split(id, list_id);
        }
        let length = self.lengths[list_id as usize % BINS];
        if length < UNIFORM {
            self.lengths[list_id as usize] = length.saturating_sub(u8::from(list_id >= EXACT));
        } else if length == SPLIT {
            return self.unlist_from_split(id, self.list_below(list_id, size));
        }
        let Hole { prev, next, .. } = self.holes[id];
        if prev != NIL {
            self.holes[prev].next = next;
        } else {
            self.heads[list_id as usize] = next;
        }
        if next != NIL {
            self.holes[next].prev = prev;
        } else if prev == NIL {
            self.unmark(list_id);
        }
    }

    /// Marks a bin as empty.
    #[inline(always)]
    pub(crate) fn unmark(&mut self, bin: u32) {
        self.lengths[bin as usize % BINS] = 0;
        let (octave, mantissa) = split(bin);
        let left = self.fine[octave] & !(1 << mantissa);
        self.fine[octave] = left;
        self.coarse &= !(u64::from(left == 0) << octave);
    }

    // Both without branches: with mixed sizes they are unpredictable.
    #[inline]
    fn gain(&mut self, size: u64) {
        let kept = self.largest_count * u32::from(size <= self.largest);
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
        let Some(list_id) = self.top() else { return };
        let mut id = self.first(list_id);
        for _ in 0..LIST_MAX {
            if id == NIL {
                break;
            }
            let Hole { size, next, .. } = self.holes[id];
            self.gain(size);
            id = next;
        }
    }

    /// Returns the non-empty list of the greatest sizes.
    pub(crate) fn top(&self) -> Option<u32> {
        let octave = self.coarse.checked_ilog2()?;
        Some(self.highest_of(octave << MANTISSA_BITS | self.fine[octave as usize].ilog2()))
    }

    /// Returns the list for holes of `size` bytes, empty or not.
    #[inline]
    pub(crate) fn list_of(&self, size: u64) -> u32 {
        let bin = bin_floor(size);
        if self.lengths[bin as usize % BINS] == SPLIT { self.list_below(bin, size) } else { bin }
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

    /// Returns the next non-empty list of greater sizes.
    #[inline]
    pub(crate) fn above(&self, list_id: u32) -> Option<u32> {
        if list_id as usize >= BINS {
            return self.above_in_split(list_id);
        }
        let bin = self.filled_from(list_id + 1)?;
        Some(if self.lengths[bin as usize % BINS] == SPLIT { self.lowest(bin) } else { bin })
    }

    /// Returns the next non-empty list of smaller sizes.
    pub(crate) fn below(&self, list_id: u32) -> Option<u32> {
        if list_id as usize >= BINS {
            return self.below_in_split(list_id);
        }
        let (octave, mantissa) = split(list_id);
        let here = self.fine[octave] & !(!0 << mantissa);
        let below = self.coarse & !(!0 << octave);
        let octave = if here != 0 { octave } else { below.checked_ilog2()? as usize };
        let word = if here != 0 { here } else { self.fine[octave] };
        Some(self.highest_of((octave as u32) << MANTISSA_BITS | word.ilog2()))
    }

    /// Returns the non-empty list of the greatest sizes in a bin.
    #[inline]
    fn highest_of(&self, bin: u32) -> u32 {
        if self.lengths[bin as usize % BINS] == SPLIT { self.highest(bin) } else { bin }
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
    pub(crate) fn head_mut(&mut self, list_id: u32) -> &mut u32 {
        if (list_id as usize) < BINS {
            &mut self.heads[list_id as usize]
        } else {
            self.splits.head_mut(list_id)
        }
    }

    /// Returns the first non-empty bin at or above `bin`.
    #[inline]
    pub(crate) fn filled_from(&self, bin: u32) -> Option<u32> {
        let (octave, mantissa) = split(bin);
        let here = self.fine[octave] & (!0 << mantissa);
        // Octave 63 is always empty, so the shift amount stays below 64 where it matters.
        let above = self.coarse & (!1 << octave);
        if here | above == 0 {
            return None;
        }
        // Without a branch: which of the two it is, is unpredictable.
        let next = above.trailing_zeros() as usize % OCTAVES;
        let (octave, word) =
            select_unpredictable(here != 0, (octave, here), (next, self.fine[next]));
        Some((octave as u32) << MANTISSA_BITS | word.trailing_zeros())
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

    /// Returns the greatest binned size if it is known without reading a list.
    pub(crate) fn largest_if_known(&self) -> Option<u64> {
        (self.largest_count > 0).then_some(self.largest)
    }

    /// Checks that lists and bitmaps agree, for [`super::check`]; returns the number of binned
    /// holes.
    pub(crate) fn check(&self) -> Result<u32, String> {
        let mut binned = 0;
        for bin in 0..BINS as u32 {
            let octave = (bin >> MANTISSA_BITS) as usize;
            let length = self.lengths[bin as usize % BINS];
            let filled = length == SPLIT || self.heads[bin as usize % BINS] != NIL;
            let marked = self.fine[octave] >> (bin & (PER_OCTAVE - 1)) & 1 == 1;
            if filled != marked {
                return Err(format!("bin {bin}: list filled {filled}, bit {marked}"));
            }
            if !filled && length == 0 && bin % PER_OCTAVE != 0 {
                continue;
            }
            if (self.fine[octave] != 0) != (self.coarse >> octave & 1 == 1) {
                return Err(format!("octave {octave}: coarse bit differs from the fine bits"));
            }
            let (least, most) = (bin_size_min(bin), bin_size_max(bin));
            binned += match length {
                SPLIT => self.check_split(bin, least, most)?,
                _ => self.check_list(bin, (least, most), least < most, length)?,
            };
        }
        Ok(binned)
    }

    /// Checks one list of holes of `least` to `most` bytes; returns their number.
    pub(crate) fn check_list(
        &self,
        list_id: u32,
        (least, most): (u64, u64),
        wide: bool,
        length: u8,
    ) -> Result<u32, String> {
        let (mut prev, mut holes) = (NIL, 0);
        for id in self.holes_of(list_id) {
            let hole = &self.holes[id];
            let listed = self.list_id_of(id) == list_id && hole.prev == prev;
            if !listed || !(least..=most).contains(&hole.size) {
                return Err(format!(
                    "hole {id} in list {list_id} of {least} to {most} bytes: {hole:?}"
                ));
            }
            prev = id;
            holes += 1;
        }
        if length == UNIFORM {
            let size = self.holes[self.first(list_id)].size;
            let other = self.holes_of(list_id).find(|&id| self.holes[id].size != size);
            return match other {
                Some(id) => Err(format!("hole {id} in list {list_id} is not of {size} bytes")),
                None => Ok(holes),
            };
        }
        let counted = if wide { holes } else { 0 };
        if u32::from(length) != counted || length > LIST_MAX {
            return Err(format!("list {list_id} has {holes} holes, and {length} is its length"));
        }
        Ok(holes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_tile_all_sizes() {
        for bin in 0..=bin_floor(u64::MAX) {
            let (min, max) = (bin_size_min(bin), bin_size_max(bin));
            assert_eq!((bin_floor(min), bin_floor(max)), (bin, bin));
            assert!(max - min <= min / 64, "bin {bin} is wider than 1/64");
            if max < u64::MAX {
                assert_eq!(bin_size_min(bin + 1), max + 1);
            }
        }
        assert!(bin_floor(u64::MAX) < BINS as u32);
    }

    #[test]
    fn the_largest_is_exact_through_ties_and_removals() {
        let mut bins = Bins::new();
        assert_eq!(bins.largest(), 0);
        let a = bins.insert(Hole::new(0, 1000, 0));
        let b = bins.insert(Hole::new(2000, 1000, 0));
        let c = bins.insert(Hole::new(4000, 1001, 0));
        assert_eq!(bins.largest(), 1001);
        bins.remove(c);
        assert_eq!(bins.largest(), 1000);
        bins.remove(a);
        assert_eq!(bins.largest(), 1000);
        bins.change(b, 2000, 7);
        assert_eq!(bins.largest(), 7);
        bins.remove(b);
        assert_eq!(bins.largest(), 0);
        assert_eq!(bins.check(), Ok(0));
    }
}
