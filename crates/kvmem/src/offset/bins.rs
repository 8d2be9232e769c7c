//! *Bins*: the free ranges, found by size in a fixed number of steps.
//!
//! A free range is a [`Hole`]. Holes of about the same size share a bin; a bin is a list, last in first
//! out. Every octave of sizes is cut into 64 bins, sizes below 64 have a bin each:
//!
//! ```text
//! size  0 1 2 … 63 | 64 65 … 127 | 128‥129 130‥131 … | … | 2^62‥ …
//! bin   0 1 2 … 63 | 64 65 … 127 | 128     129     … | … |
//!       octave 0     octave 1      octave 2                octave 57
//! ```
//!
//! so a bin is at most 1/64 of its sizes wide, and bins below 128 are exact. Two levels of bitmap say which
//! bins hold anything: bit *o* of `coarse` iff octave *o* does, bit *m* of `fine[o]` iff bin 64·*o* + *m*
//! does. The next bin that holds something is two count-zeros away (Masmano et al., *TLSF: a new dynamic
//! memory allocator for real-time systems*, 2004; with the request's own bin looked at first, which TLSF
//! gives up by rounding up).
//!
//! `largest` is kept as the greatest hole and how many are of that very size. When the last of them goes,
//! it is found anew among the top bin's entries.

use std::hint::select_unpredictable;
use std::ops::{Index, IndexMut, Range};

use super::table::NIL;

const MANTISSA_BITS: u32 = 6;
const PER_OCTAVE: u32 = 1 << MANTISSA_BITS;
/// More than there are, so that no index has to be checked.
const OCTAVES: usize = 64;
/// Number of bins.
pub(super) const BINS: usize = OCTAVES * PER_OCTAVE as usize;
/// In [`Hole::bin`]: the hole is on the books but held back from the bins.
const HELD_BACK: u32 = u32::MAX;
/// In [`Hole::bin`]: held back, and in the list of runs.
const RUN: u32 = HELD_BACK - 1;

/// The bin whose sizes begin at or below `size` (the floor bin).
#[inline]
pub(super) fn bin_floor(size: u64) -> u32 {
    if size < u64::from(PER_OCTAVE) {
        return size as u32;
    }
    let exponent = size.ilog2();
    let mantissa = (size >> (exponent - MANTISSA_BITS)) as u32 & (PER_OCTAVE - 1);
    (exponent - MANTISSA_BITS + 1) << MANTISSA_BITS | mantissa
}

/// Octave and place within it of a bin.
#[inline]
fn split(bin: u32) -> (usize, u32) {
    ((bin >> MANTISSA_BITS) as usize % OCTAVES, bin & (PER_OCTAVE - 1))
}

/// The least size in `bin`.
pub(super) fn bin_size_min(bin: u32) -> u64 {
    let (octave, mantissa) = (bin >> MANTISSA_BITS, u64::from(bin & (PER_OCTAVE - 1)));
    if octave == 0 { mantissa } else { (mantissa + u64::from(PER_OCTAVE)) << (octave - 1) }
}

/// The greatest size in `bin`.
pub(super) fn bin_size_max(bin: u32) -> u64 {
    let width_log2 = (bin >> MANTISSA_BITS).saturating_sub(1);
    bin_size_min(bin) + ((1 << width_log2) - 1)
}

/// The hole of whatever is not free: a record with size 0, so that the bytes free beside a range can be had without
/// asking first whether there are any.
pub(super) const NOTHING: u32 = 0;

/// A free range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Its node in the chain of ranges.
    pub(super) node: u32,
    /// Neighbours in the bin's list.
    prev: u32,
    next: u32,
    /// The bin it is in, or [`HELD_BACK`].
    bin: u32,
}

impl Hole {
    pub(super) fn new(offset: u64, size: u64, node: u32) -> Self {
        Hole { offset, size, node, prev: NIL, next: NIL, bin: HELD_BACK }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// The bin of a binned hole.
    pub(super) fn bin(&self) -> u32 {
        self.bin
    }

    pub(super) fn is_binned(&self) -> bool {
        self.bin < RUN
    }

    /// Whether it is in the list of runs.
    pub(super) fn is_run(&self) -> bool {
        self.bin == RUN
    }
}

/// The records of all holes. Unlike a node, a record has no name outside of the books: so they stand in one vector, and
/// when that has become far too long they are moved together ([`Holes::excess`]).
pub(super) struct Holes {
    records: Vec<Hole>,
    /// First free record, chained through `next`.
    free: u32,
    live: u32,
}

impl Holes {
    #[inline]
    fn insert(&mut self, hole: Hole) -> u32 {
        if self.free == NIL {
            self.add_record();
        }
        let id = self.free;
        let record = &mut self.records[id as usize];
        self.free = record.next;
        *record = hole;
        self.live += 1;
        id
    }

    #[cold]
    fn add_record(&mut self) {
        let len = self.records.len();
        if len == self.records.capacity() {
            // In steps of an eighth: slack costs more than growing does.
            self.records.reserve_exact((len / 8).max(64));
        }
        self.records.push(Hole::new(0, 0, NIL));
        self.free = len as u32;
    }

    #[inline]
    fn remove(&mut self, id: u32) -> Hole {
        self.live -= 1;
        let record = &mut self.records[id as usize];
        let hole = *record;
        (record.size, record.next) = (0, self.free);
        self.free = id;
        hole
    }

    /// Holes on the books.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Whether the vector is so much too long that it should be made anew.
    #[inline]
    pub(super) fn excess(&self) -> bool {
        self.records.len() > 4 * self.live as usize + 1024
    }
}

impl Index<u32> for Holes {
    type Output = Hole;

    #[inline]
    fn index(&self, id: u32) -> &Hole {
        &self.records[id as usize]
    }
}

impl IndexMut<u32> for Holes {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Hole {
        &mut self.records[id as usize]
    }
}

/// All holes, in bins or out of them.
pub(super) struct Bins {
    pub(super) holes: Holes,
    heads: Box<[u32; BINS]>,
    fine: [u64; OCTAVES],
    coarse: u64,
    /// First of the listed [runs](super::boundary), or `NIL`.
    runs: u32,
    /// The greatest binned size and how many holes have it; or, if the count is 0, no less than that size.
    largest: u64,
    largest_count: u32,
}

impl Bins {
    pub(super) fn new() -> Self {
        Bins {
            holes: Holes { records: vec![Hole::new(0, 0, NIL)], free: NIL, live: 0 },
            heads: Box::new([NIL; BINS]),
            fine: [0; OCTAVES],
            coarse: 0,
            runs: NIL,
            largest: 0,
            largest_count: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.holes.records.capacity() * size_of::<Hole>() + size_of_val(&*self.heads)
    }

    /// Books a new hole and puts it into its bin.
    #[inline]
    pub(super) fn insert(&mut self, hole: Hole) -> u32 {
        let id = self.holes.insert(hole);
        self.push(id);
        id
    }

    /// Books a new hole that is held back from the bins.
    pub(super) fn insert_held_back(&mut self, hole: Hole) -> u32 {
        self.holes.insert(hole)
    }

    /// Takes a hole that is held back off the books.
    pub(super) fn remove_held_back(&mut self, id: u32) -> Hole {
        self.holes.remove(id)
    }

    /// Moves all records together and tells of each move, old name and new. O(holes), amortized over as many removals.
    pub(super) fn compact(&mut self, mut moved: impl FnMut(u32, u32, &Hole)) {
        let mut order: Vec<u32> = Vec::with_capacity(self.holes.live as usize);
        let booked = |&id: &u32| id == NOTHING || self.holes[id].size > 0;
        order.extend((0..self.holes.records.len() as u32).filter(booked));
        let mut new_name = vec![NIL; self.holes.records.len()];
        for (new, &old) in order.iter().enumerate() {
            new_name[old as usize] = new as u32;
        }
        let rename = |id: u32| if id == NIL { NIL } else { new_name[id as usize] };
        let records: Vec<Hole> = order
            .iter()
            .map(|&old| {
                let hole = self.holes[old];
                Hole { prev: rename(hole.prev), next: rename(hole.next), ..hole }
            })
            .collect();
        for head in self.heads.iter_mut() {
            *head = rename(*head);
        }
        self.runs = rename(self.runs);
        for (new, &old) in order.iter().enumerate().skip(1) {
            moved(old, new as u32, &records[new]);
        }
        self.holes = Holes { records, free: NIL, live: self.holes.live };
    }

    /// Takes the hole out of its bin and off the books.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> Hole {
        self.pull(id);
        self.holes.remove(id)
    }

    /// The binned hole is now `[offset, offset + size)`, with `size > 0`.
    #[inline(always)]
    pub(super) fn change(&mut self, id: u32, offset: u64, size: u64) {
        let hole = &mut self.holes[id];
        let before = hole.size;
        (hole.offset, hole.size) = (offset, size);
        let bin = bin_floor(size);
        if hole.bin != bin {
            self.unlist(id);
            self.list(id, bin);
        }
        self.lose(before);
        self.gain(size);
    }

    /// Puts a hole that was held back into the bin of its size, as the first of its list.
    #[inline]
    pub(super) fn push(&mut self, id: u32) {
        let size = self.holes[id].size;
        self.list(id, bin_floor(size));
        self.gain(size);
    }

    /// Takes a binned hole out of its bin and holds it back.
    #[inline]
    pub(super) fn pull(&mut self, id: u32) {
        self.unlist(id);
        let hole = &mut self.holes[id];
        hole.bin = HELD_BACK;
        let size = hole.size;
        self.lose(size);
    }

    /// Puts a hole that is held back into the list of runs, as its first.
    pub(super) fn list_run(&mut self, id: u32) {
        let next = std::mem::replace(&mut self.runs, id);
        let hole = &mut self.holes[id];
        (hole.bin, hole.prev, hole.next) = (RUN, NIL, next);
        if next != NIL {
            self.holes[next].prev = id;
        }
    }

    /// Takes a hole out of the list of runs, if it is in there; it stays held back.
    pub(super) fn unlist_run(&mut self, id: u32) {
        let Hole { bin, prev, next, .. } = self.holes[id];
        if bin != RUN {
            return;
        }
        match prev {
            NIL => self.runs = next,
            _ => self.holes[prev].next = next,
        }
        if next != NIL {
            self.holes[next].prev = prev;
        }
        self.holes[id].bin = HELD_BACK;
    }

    /// The run listed last, or `NIL`.
    #[inline]
    pub(super) fn first_run(&self) -> u32 {
        self.runs
    }

    /// The listed runs, last listed first.
    pub(super) fn runs(&self) -> impl Iterator<Item = u32> {
        self.listed_from(self.runs)
    }

    #[inline(always)]
    fn list(&mut self, id: u32, bin: u32) {
        let head = &mut self.heads[bin as usize % BINS];
        let next = std::mem::replace(head, id);
        let hole = &mut self.holes[id];
        (hole.bin, hole.prev, hole.next) = (bin, NIL, next);
        if next == NIL {
            let (octave, mantissa) = split(bin);
            self.fine[octave] |= 1 << mantissa;
            self.coarse |= 1 << octave;
        } else {
            self.holes[next].prev = id;
        }
    }

    #[inline(always)]
    fn unlist(&mut self, id: u32) {
        let Hole { bin, prev, next, .. } = self.holes[id];
        if prev != NIL {
            self.holes[prev].next = next;
        } else {
            self.heads[bin as usize % BINS] = next;
        }
        if next != NIL {
            self.holes[next].prev = prev;
        } else if prev == NIL {
            let (octave, mantissa) = split(bin);
            let left = self.fine[octave] & !(1 << mantissa);
            self.fine[octave] = left;
            self.coarse &= !(u64::from(left == 0) << octave);
        }
    }

    // Neither of these two branches: with mixed sizes, chance decides.
    #[inline]
    fn gain(&mut self, size: u64) {
        let kept = self.largest_count * u32::from(size <= self.largest);
        self.largest_count = kept + u32::from(size >= self.largest);
        self.largest = self.largest.max(size);
    }

    #[inline]
    fn lose(&mut self, size: u64) {
        self.largest_count -= u32::from(size == self.largest);
    }

    /// The greatest binned size; 0 if nothing is binned.
    ///
    /// O(1), but for the first call after the last hole of the greatest size has gone: then O(entries of the
    /// top bin).
    #[inline]
    pub(super) fn largest(&mut self) -> u64 {
        if self.largest_count == 0 {
            self.refresh_largest();
        }
        self.largest
    }

    /// The bin of the greatest sizes that holds anything.
    fn top(&self) -> Option<u32> {
        let octave = self.coarse.checked_ilog2()?;
        Some(octave << MANTISSA_BITS | self.fine[octave as usize].ilog2())
    }

    /// A hole of the greatest binned size. O(entries of the top bin).
    pub(super) fn largest_hole(&self) -> Option<u32> {
        self.holes_of(self.top()?).max_by_key(|&id| self.holes[id].size)
    }

    #[inline(never)]
    fn refresh_largest(&mut self) {
        (self.largest, self.largest_count) = (0, 0);
        let Some(bin) = self.top() else { return };
        let mut id = self.heads[bin as usize % BINS];
        while id != NIL {
            let Hole { size, next, .. } = self.holes[id];
            self.gain(size);
            id = next;
        }
    }

    /// First hole of `bin`, or `NIL`.
    #[inline]
    pub(super) fn first(&self, bin: u32) -> u32 {
        self.heads[bin as usize % BINS]
    }

    /// The first bin at or above `bin` that holds anything.
    #[inline]
    pub(super) fn filled_from(&self, bin: u32) -> Option<u32> {
        let (octave, mantissa) = split(bin);
        let here = self.fine[octave] & (!0 << mantissa);
        // Octave 63 is never filled, so that no shift is by 64 where it matters.
        let above = self.coarse & (!1 << octave);
        if here | above == 0 {
            return None;
        }
        // Which of the two it is, chance decides: no branch.
        let next = above.trailing_zeros() as usize % OCTAVES;
        let (octave, word) = select_unpredictable(here != 0, (octave, here), (next, self.fine[next]));
        Some((octave as u32) << MANTISSA_BITS | word.trailing_zeros())
    }

    /// The holes of `bin`, in list order.
    #[inline]
    pub(super) fn holes_of(&self, bin: u32) -> impl Iterator<Item = u32> {
        self.listed_from(self.first(bin))
    }

    /// The holes behind `id` in its list.
    #[inline]
    pub(super) fn after(&self, id: u32) -> impl Iterator<Item = u32> {
        self.listed_from(self.holes[id].next)
    }

    #[inline]
    fn listed_from(&self, mut id: u32) -> impl Iterator<Item = u32> {
        std::iter::from_fn(move || {
            let this = id;
            (this != NIL).then(|| {
                id = self.holes[this].next;
                this
            })
        })
    }

    /// What is known of the greatest binned size without looking.
    pub(super) fn largest_if_known(&self) -> Option<u64> {
        (self.largest_count > 0).then_some(self.largest)
    }

    /// Records, in use or not.
    pub(super) fn records(&self) -> usize {
        self.holes.records.len()
    }

    /// Whether lists and bitmaps agree with each other, for [`super::check`].
    pub(super) fn check(&self) -> Result<u32, String> {
        let mut binned = 0;
        for bin in 0..BINS as u32 {
            let octave = (bin >> MANTISSA_BITS) as usize;
            let filled = self.heads[bin as usize % BINS] != NIL;
            let marked = self.fine[octave] >> (bin & (PER_OCTAVE - 1)) & 1 == 1;
            if filled != marked {
                return Err(format!("bin {bin}: list filled {filled}, bit {marked}"));
            }
            if (self.fine[octave] != 0) != (self.coarse >> octave & 1 == 1) {
                return Err(format!("octave {octave}: coarse bit differs from the fine bits"));
            }
            let mut prev = NIL;
            for id in self.holes_of(bin) {
                let hole = &self.holes[id];
                if hole.prev != prev || hole.bin != bin || bin_floor(hole.size) != bin {
                    return Err(format!("hole {id} of bin {bin}: {hole:?}"));
                }
                prev = id;
                binned += 1;
            }
        }
        Ok(binned)
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
