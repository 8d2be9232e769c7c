//! *Splits*: long bins divided into narrower lists, which keeps every list short.
//!
//! When a hole comes to a list at its limit, a *split* replaces the list: 64 lists of equal width,
//! as narrow as the sizes in the list allow, and one word that tells which of them are non-empty.
//! These lists are split in turn. A list for one size has no limit. When few holes are left in a
//! split, they become one list again.
//!
//! ```text
//! bin            2^20 ‥ 2^20 + 16,383                       one list, or
//! split          256 bytes │ 256 bytes │ … │ 256 bytes      64 lists, or splits
//! split within     1 │ 1 │ … │ 1                            lists for one size, of any length
//! ```
//!
//! A split covers an aligned block of sizes, not all sizes of the list that it replaces. When a
//! size comes that the list holds and the split does not cover, a wider split is inserted around
//! it. It covers both, and the inner split becomes one of its lists. No hole is touched.
//!
//! A uniform list of a bin, which may be long, becomes a list of a new split in the same way when
//! another size comes: without being read. Such a list is *uncounted*, and its holes still store
//! the bin.
//!
//! Each list is at least 64 times narrower than the lists of the split around it. Sizes have 64
//! bits, and bins take up the highest seven of them, so at most ten splits are nested.
//!
//! A list within a split has the list id `BINS` + 128·(number of the split) + number of the list;
//! ids below `BINS` are bins. Two more ids of each split stand for the sizes of the replaced list
//! that lie below and above the split. Those lists are always empty, but have neighbours as other
//! lists do.

use super::super::table::NIL;
use super::bins::{BINS, Bins, LIST_MAX, PER_OCTAVE, SPLIT, UNIFORM, bin_size_min, bin_width_log2};
use super::holes::Hole;

/// Number of holes in a split that become one list again.
const MERGED: u32 = 16;
const LISTS: usize = PER_OCTAVE as usize;
const LISTS_LOG2: u32 = LISTS.ilog2();
/// Ids for the sizes that a split does not cover: those below, and those above.
const BELOW: usize = LISTS;
const ABOVE: usize = LISTS + 1;
/// List ids of each split, some of them unused.
const IDS_PER_SPLIT: u32 = 2 * PER_OCTAVE;
/// Upper bound of the number of splits, given by the list ids. The greatest ids mark holes outside
/// of the bins.
const MOST: usize = (u32::MAX as usize - BINS) / IDS_PER_SPLIT as usize - 1;

/// A list divided into narrower ones.
struct Split {
    /// The least size.
    least: u64,
    /// Binary logarithm of the width of each list.
    width_log2: u32,
    /// Counted holes in the lists of this split, without those in nested splits.
    live: u32,
    /// Bitmap of the non-empty lists.
    filled: u64,
    /// Bitmap of the lists that are split.
    nested: u64,
    /// Bitmap of the uncounted lists: a bin's uniform list becomes a list of its split without
    /// being read.
    uncounted: u64,
    /// Id of the list that was split.
    above: u32,
    /// First hole of each list, or the number of the nested split that replaces it.
    heads: [u32; LISTS + 2],
    /// Length of each list, or 0 if it is for one size or split.
    lengths: [u8; LISTS],
}

impl Split {
    /// Creates an empty split of the list `above`, whose lists have the given width; one of them is
    /// for `size`.
    fn new(above: u32, size: u64, width_log2: u32) -> Self {
        let covered_log2 = width_log2 + LISTS_LOG2;
        Split {
            least: size >> covered_log2 << covered_log2,
            width_log2,
            live: 0,
            filled: 0,
            nested: 0,
            uncounted: 0,
            above,
            heads: [NIL; LISTS + 2],
            lengths: [0; LISTS],
        }
    }

    /// Returns the list for `size`, or [`BELOW`] or [`ABOVE`].
    #[inline(always)]
    fn list_for(&self, size: u64) -> usize {
        let list = size.wrapping_sub(self.least) >> self.width_log2;
        match list < LISTS as u64 {
            true => list as usize,
            false if size < self.least => BELOW,
            false => ABOVE,
        }
    }

    #[inline(always)]
    fn is_nested(&self, list: usize) -> bool {
        self.nested >> list & 1 == 1
    }

    /// Returns the least size of a list.
    fn least_of(&self, list: usize) -> u64 {
        self.least + ((list as u64) << self.width_log2)
    }
}

/// All splits.
pub(crate) struct Splits {
    splits: Vec<Option<Box<Split>>>,
    /// Free numbers.
    free: Vec<u32>,
    /// Upper bound of the number of splits.
    max: usize,
}

/// Returns the id of a list within a split.
#[inline(always)]
fn list_id_in(split: u32, list: usize) -> u32 {
    BINS as u32 + split * IDS_PER_SPLIT + list as u32
}

/// Returns the split of a list id, and the number of the list within it.
#[inline(always)]
fn split_of(list_id: u32) -> (u32, usize) {
    let within = list_id - BINS as u32;
    (within / IDS_PER_SPLIT, (within % IDS_PER_SPLIT) as usize)
}

impl Splits {
    pub(crate) fn new() -> Self {
        Splits { splits: Vec::new(), free: Vec::new(), max: MOST }
    }

    pub(crate) fn bytes(&self) -> usize {
        let used = self.splits.len() - self.free.len();
        used * size_of::<Split>()
            + self.splits.capacity() * size_of::<Option<Box<Split>>>()
            + self.free.capacity() * size_of::<u32>()
    }

    #[inline]
    pub(crate) fn head(&self, list_id: u32) -> u32 {
        let (split, list) = split_of(list_id);
        self.get(split).heads[list]
    }

    pub(crate) fn head_mut(&mut self, list_id: u32) -> &mut u32 {
        let (split, list) = split_of(list_id);
        &mut self.get_mut(split).heads[list]
    }

    #[inline(always)]
    fn get(&self, split: u32) -> &Split {
        match &self.splits[split as usize] {
            Some(split) => split,
            None => missing(split),
        }
    }

    #[inline(always)]
    fn get_mut(&mut self, split: u32) -> &mut Split {
        match &mut self.splits[split as usize] {
            Some(split) => split,
            None => missing(split),
        }
    }

    /// Returns whether a number for one more split is left.
    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.splits.len() < self.max
    }

    fn insert(&mut self, split: Split) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.splits.push(None);
            self.splits.len() as u32 - 1
        });
        self.splits[number as usize] = Some(Box::new(split));
        number
    }

    fn remove(&mut self, split: u32) {
        self.splits[split as usize] = None;
        self.free.push(split);
        if self.free.len() == self.splits.len() {
            (self.splits, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// Returns the non-empty list of the least sizes in a split.
    #[inline(always)]
    fn lowest(&self, mut number: u32) -> u32 {
        loop {
            let split = self.get(number);
            let list = split.filled.trailing_zeros() as usize % LISTS;
            match split.is_nested(list) {
                true => number = split.heads[list],
                false => return list_id_in(number, list),
            }
        }
    }

    /// Returns the non-empty list of the greatest sizes in a split.
    fn highest(&self, mut number: u32) -> u32 {
        loop {
            let split = self.get(number);
            let list = split.filled.ilog2() as usize;
            match split.is_nested(list) {
                true => number = split.heads[list],
                false => return list_id_in(number, list),
            }
        }
    }
}

impl Bins {
    /// Returns the least size of a list, and the binary logarithm of its width.
    fn sizes_of(&self, list_id: u32) -> (u64, u32) {
        if (list_id as usize) < BINS {
            return (bin_size_min(list_id), bin_width_log2(list_id));
        }
        let (number, list) = split_of(list_id);
        let split = self.splits.get(number);
        (split.least_of(list), split.width_log2)
    }

    /// Returns whether all holes of a list have the same size.
    pub(crate) fn is_of_one_size(&self, list_id: u32) -> bool {
        self.is_uniform(list_id) || self.sizes_of(list_id).1 == 0
    }

    /// Puts a hole into the list of its size, if its bin is split or at its limit.
    #[inline(never)]
    pub(crate) fn list_in_split(&mut self, id: u32, bin: u32) {
        let size = self.holes[id].size;
        if self.lengths[bin as usize % BINS] != SPLIT && !self.is_split_for(bin, size) {
            self.link_first(id, bin);
            return;
        }
        let mut number = self.heads[bin as usize % BINS];
        let (list_id, next) = loop {
            let split = self.splits.get_mut(number);
            let list = split.list_for(size);
            if list >= LISTS {
                match self.widen(number, size) {
                    Some(wider) => number = wider,
                    None => return self.list_flat(id, bin),
                }
                continue;
            }
            if split.is_nested(list) {
                number = split.heads[list];
                continue;
            }
            let list_id = list_id_in(number, list);
            if split.lengths[list] == LIST_MAX && self.split(list_id) {
                continue;
            }
            let split = self.splits.get_mut(number);
            let wide = split.width_log2 > 0;
            split.lengths[list] = (split.lengths[list] + u8::from(wide)).min(LIST_MAX);
            let counted = split.uncounted >> list & 1 == 0;
            split.live += u32::from(counted);
            split.filled |= 1 << list;
            let list_id = if counted { list_id } else { bin };
            break (list_id, std::mem::replace(&mut split.heads[list], id));
        };
        let hole = &mut self.holes[id];
        (hole.list_id, hole.prev, hole.next) = (list_id, NIL, next);
        if next != NIL {
            self.holes[next].prev = id;
        }
    }

    /// Prepares the list of a bin at its limit for one more hole, of `size` bytes. Returns whether
    /// the bin is split afterwards. O([`LIST_MAX`]).
    #[cold]
    fn is_split_for(&mut self, bin: u32, size: u64) -> bool {
        let first = self.first(bin);
        let one = self.holes[first].size;
        if self.lengths[bin as usize] == UNIFORM {
            // The size differs from that of the list.
            let len = self.holes_of(bin).take(LIST_MAX as usize).count() as u8;
            if len < LIST_MAX || !self.splits.has_room() {
                self.lengths[bin as usize] = (len + 1).min(LIST_MAX);
                return false;
            }
            let mut split = Split::new(bin, one, 0);
            let list = split.list_for(one);
            (split.filled, split.uncounted, split.heads[list]) = (1 << list, 1 << list, first);
            let number = self.splits.insert(split);
            self.replace(bin, number);
            return true;
        }
        if one == size && self.holes_of(bin).all(|id| self.holes[id].size == size) {
            self.lengths[bin as usize] = UNIFORM;
            return false;
        }
        self.split(bin)
    }

    /// Splits a list; returns whether a number for the split was left. O([`LIST_MAX`]).
    #[cold]
    fn split(&mut self, list_id: u32) -> bool {
        if !self.splits.has_room() {
            return false;
        }
        let sizes = self.holes_of(list_id).map(|id| self.holes[id].size);
        let (least, max) =
            sizes.fold((u64::MAX, 0), |(least, max), size| (least.min(size), max.max(size)));
        let differing = (least ^ max).checked_ilog2().unwrap_or(0);
        let width_log2 = (differing + 1).saturating_sub(LISTS_LOG2);
        let number = self.splits.insert(Split::new(list_id, least, width_log2));
        let mut rest = self.replace(list_id, number);
        let mut ids = [NIL; LIST_MAX as usize];
        while rest != NIL {
            let mut len = 0;
            while rest != NIL && len < ids.len() {
                ids[len] = rest;
                len += 1;
                rest = self.holes[rest].next;
            }
            // From the last to the first: each list keeps the order that the holes had.
            for &id in ids[..len].iter().rev() {
                let size = self.holes[id].size;
                let split = self.splits.get_mut(number);
                let list = split.list_for(size);
                let wide = split.width_log2 > 0;
                split.lengths[list] = (split.lengths[list] + u8::from(wide)).min(LIST_MAX);
                split.live += 1;
                split.filled |= 1 << list;
                self.link_first(id, list_id_in(number, list));
            }
        }
        if list_id as usize >= BINS {
            let moved = self.splits.get(number).live;
            self.splits.get_mut(split_of(list_id).0).live -= moved;
        }
        true
    }

    /// Replaces a list or a split by the split `number`; returns what was there.
    fn replace(&mut self, list_id: u32, number: u32) -> u32 {
        if (list_id as usize) < BINS {
            self.lengths[list_id as usize] = SPLIT;
            return std::mem::replace(&mut self.heads[list_id as usize], number);
        }
        let (around, list) = split_of(list_id);
        let around = self.splits.get_mut(around);
        around.nested |= 1 << list;
        around.lengths[list] = 0;
        std::mem::replace(&mut around.heads[list], number)
    }

    /// Inserts a split around the split `number`, which covers `size` as well. Returns `None` if no
    /// number is left. O(1).
    #[cold]
    fn widen(&mut self, number: u32, size: u64) -> Option<u32> {
        if !self.splits.has_room() {
            return None;
        }
        let &Split { least, width_log2, above, .. } = self.splits.get(number);
        // One list must cover the inner split, and all lists together must cover the size.
        let width_log2 =
            (width_log2 + LISTS_LOG2).max(((least ^ size).ilog2() + 1).saturating_sub(LISTS_LOG2));
        let mut wider = Split::new(above, size, width_log2);
        let list = wider.list_for(least);
        (wider.filled, wider.nested, wider.heads[list]) = (1 << list, 1 << list, number);
        let wider = self.splits.insert(wider);
        self.replace(above, wider);
        self.splits.get_mut(number).above = list_id_in(wider, list);
        Some(wider)
    }

    /// Makes one list of a whole bin and the new hole, when no numbers for splits are left. O(holes
    /// of the bin).
    #[cold]
    fn list_flat(&mut self, id: u32, bin: u32) {
        let mut ids = vec![id];
        self.gather(self.heads[bin as usize], &mut ids);
        self.heads[bin as usize] = NIL;
        self.lengths[bin as usize] = LIST_MAX;
        for &id in ids.iter().rev() {
            self.link_first(id, bin);
        }
    }

    /// Removes a hole from a list within a split.
    #[inline(never)]
    pub(crate) fn unlist_from_split(&mut self, id: u32, list_id: u32) {
        let Hole { prev, next, .. } = self.holes[id];
        let (number, list) = split_of(list_id);
        let split = self.splits.get_mut(number);
        let wide = split.width_log2 > 0;
        split.lengths[list] = split.lengths[list].saturating_sub(u8::from(wide));
        split.live -= 1 - (split.uncounted >> list & 1) as u32;
        if prev == NIL {
            split.heads[list] = next;
            let emptied = u64::from(next == NIL) << list;
            split.filled &= !emptied;
            split.uncounted &= !emptied;
        }
        let few = split.live <= MERGED && (split.nested | split.uncounted == 0 || split.live == 0);
        if prev != NIL {
            self.holes[prev].next = next;
        }
        if next != NIL {
            self.holes[next].prev = prev;
        }
        if few {
            self.merge(number);
        }
    }

    /// Makes one list of a split with few holes, then of each split around it that has few holes as
    /// a result. Replaces a split that contains only one nested split or uncounted list by that.
    /// O([`MERGED`]).
    #[cold]
    fn merge(&mut self, mut number: u32) {
        loop {
            let &Split { live, filled, nested, uncounted, above, .. } = self.splits.get(number);
            let pinned = nested | uncounted;
            if pinned != 0 {
                let inner = self.splits.get(number).heads[pinned.trailing_zeros() as usize];
                if live > 0 || !pinned.is_power_of_two() {
                    return;
                }
                if uncounted == 0 {
                    self.replace(above, inner);
                    self.splits.get_mut(inner).above = above;
                    self.splits.remove(number);
                } else if (above as usize) < BINS {
                    (self.heads[above as usize], self.lengths[above as usize]) = (inner, UNIFORM);
                    self.splits.remove(number);
                }
                return;
            }
            let mut ids = [NIL; MERGED as usize];
            let (mut len, mut rest) = (0, filled);
            while rest != 0 {
                let mut id = self.splits.get(number).heads[rest.trailing_zeros() as usize];
                while id != NIL && len < ids.len() {
                    ids[len] = id;
                    len += 1;
                    id = self.holes[id].next;
                }
                rest &= rest - 1;
            }
            self.splits.remove(number);
            *self.head_mut(above) = NIL;
            for &id in ids[..len].iter().rev() {
                self.link_first(id, above);
            }
            if (above as usize) < BINS {
                self.lengths[above as usize] = len as u8;
                if len == 0 {
                    self.unmark(above);
                }
                return;
            }
            let (around, list) = split_of(above);
            let split = self.splits.get_mut(around);
            split.nested &= !(1 << list);
            split.filled &= !(u64::from(len == 0) << list);
            split.lengths[list] = len as u8;
            split.live += live;
            if split.live > MERGED {
                return;
            }
            number = around;
        }
    }

    /// Collects the holes of a split and of its nested splits, and frees the splits.
    fn gather(&mut self, number: u32, ids: &mut Vec<u32>) {
        for list in 0..LISTS {
            let split = self.splits.get(number);
            match split.is_nested(list) {
                true => self.gather(split.heads[list], ids),
                false => ids.extend(self.listed_from(split.heads[list])),
            }
        }
        self.splits.remove(number);
    }

    /// Returns the list for `size` within a bin that is split.
    #[inline(never)]
    pub(crate) fn list_below(&self, bin: u32, size: u64) -> u32 {
        let mut number = self.first(bin);
        loop {
            let split = self.splits.get(number);
            let list = split.list_for(size);
            if list >= LISTS || !split.is_nested(list) {
                return list_id_in(number, list);
            }
            number = split.heads[list];
        }
    }

    /// Returns the non-empty list of the least sizes in a bin that is split.
    #[inline(never)]
    pub(crate) fn lowest(&self, bin: u32) -> u32 {
        self.splits.lowest(self.first(bin))
    }

    /// Returns the non-empty list of the greatest sizes in a bin that is split.
    pub(crate) fn highest(&self, bin: u32) -> u32 {
        self.splits.highest(self.first(bin))
    }

    /// Returns the next non-empty list of greater sizes, for a list within a split.
    #[inline(never)]
    pub(crate) fn above_in_split(&self, mut list_id: u32) -> Option<u32> {
        while list_id as usize >= BINS {
            let (number, list) = split_of(list_id);
            let split = self.splits.get(number);
            let above = match list {
                BELOW => split.filled,
                ABOVE => 0,
                list => split.filled & (!1 << list),
            };
            if above != 0 {
                let list = above.trailing_zeros() as usize;
                return Some(match split.is_nested(list) {
                    true => self.splits.lowest(split.heads[list]),
                    false => list_id_in(number, list),
                });
            }
            list_id = split.above;
        }
        self.above(list_id)
    }

    /// Returns the next non-empty list of smaller sizes, for a list within a split.
    pub(crate) fn below_in_split(&self, mut list_id: u32) -> Option<u32> {
        while list_id as usize >= BINS {
            let (number, list) = split_of(list_id);
            let split = self.splits.get(number);
            let below = match list {
                BELOW => 0,
                ABOVE => split.filled,
                list => split.filled & !(!0 << list),
            };
            if below != 0 {
                let list = below.ilog2() as usize;
                return Some(match split.is_nested(list) {
                    true => self.splits.highest(split.heads[list]),
                    false => list_id_in(number, list),
                });
            }
            list_id = split.above;
        }
        self.below(list_id)
    }

    /// Checks the split of a list that holds sizes of `least` to `most` bytes; returns the number
    /// of its holes.
    pub(crate) fn check_split(&self, list_id: u32, least: u64, max: u64) -> Result<u32, String> {
        let number = self.first(list_id);
        let split = self.splits.get(number);
        let Split { above, live, nested, uncounted, filled, .. } = *split;
        let few = live <= MERGED && nested | uncounted == 0;
        if above != list_id || few || (nested | uncounted) & !filled != 0 {
            return Err(format!("split {number} at {list_id} says {above}, {live} holes"));
        }
        let (mut holes, mut inner) = (0, 0);
        for list in 0..LISTS {
            let first = split.least_of(list).max(least);
            let last = (split.least_of(list) + ((1 << split.width_log2) - 1)).min(max);
            let filled = split.heads[list] != NIL;
            if filled != (split.filled >> list & 1 == 1) {
                return Err(format!("list {list} of split {number}: filled {filled}"));
            }
            if filled && first > last {
                return Err(format!("list {list} of split {number} is beyond {least} to {max}"));
            }
            let list_id = list_id_in(number, list);
            match split.is_nested(list) {
                true => inner += self.check_split(list_id, first, last)?,
                false => {
                    let wide = split.width_log2 > 0;
                    let listed =
                        self.check_list(list_id, (first, last), wide, split.lengths[list])?;
                    match uncounted >> list & 1 {
                        0 => holes += listed,
                        _ => inner += listed,
                    }
                }
            }
        }
        if holes != live {
            return Err(format!("split {number} has {holes} holes, not {live}"));
        }
        Ok(holes + inner)
    }
}

/// Reports a number without a split: a broken invariant.
#[cold]
fn missing(split: u32) -> ! {
    panic!("split {split} does not exist");
}

#[cfg(test)]
mod tests {
    use super::super::Hole;
    use super::*;
    use crate::offset::steps;

    /// Inserts holes of these sizes and removes them in another order; the lists stay correct
    /// throughout.
    fn insert_and_remove(sizes: &[u64], stride: usize) {
        let mut bins = Bins::new();
        let ids: Vec<u32> = sizes.iter().map(|&size| bins.insert(Hole::new(0, size, 0))).collect();
        assert_eq!(bins.check(), Ok(ids.len() as u32));
        let mut sorted = sizes.to_vec();
        sorted.sort_unstable();
        let listed: Vec<u64> = bins.holes_from(1).map(|id| bins.holes[id].size).collect();
        assert_eq!(listed.len(), sizes.len());
        let (steps, found) = steps::of(|| bins.list_of(sorted[sorted.len() / 2]));
        assert!(steps < 100 && bins.holes_of(found).next().is_some());
        let mut left: std::collections::BTreeMap<u64, u32> = Default::default();
        sizes.iter().for_each(|&size| *left.entry(size).or_default() += 1);
        for i in 0..ids.len() {
            let id = ids[i * stride % ids.len()];
            let size = bins.holes[id].size;
            let (steps, _) = steps::of(|| bins.remove(id));
            assert!(steps < 400, "{steps} steps");
            let count = left.get_mut(&size).unwrap();
            *count -= 1;
            if *count == 0 {
                left.remove(&size);
            }
            let (steps, largest) = steps::of(|| bins.largest());
            assert!(steps < 100, "{steps} steps");
            assert_eq!(largest, left.last_key_value().map_or(0, |(&size, _)| size));
            if i % 97 == 0 {
                assert_eq!(bins.check(), Ok((ids.len() - i - 1) as u32));
            }
        }
        assert_eq!(bins.check(), Ok(0));
        assert!(bins.splits.splits.is_empty());
    }

    #[test]
    fn long_bins_are_split_and_merged() {
        insert_and_remove(&(0..5000).map(|i| (1 << 20) + i * 3 % 16_384).collect::<Vec<_>>(), 1237);
        insert_and_remove(&(0..5000).map(|i| (1 << 50) + i % 70).collect::<Vec<_>>(), 1237);
        insert_and_remove(&[1 << 62; 3000], 7);
        insert_and_remove(&[77; 3000], 7);
        insert_and_remove(&[[1 << 40, (1 << 40) + 1]; 1000].concat(), 999);
        insert_and_remove(&(1..4000).map(|i| i * i).collect::<Vec<_>>(), 1000);
    }

    /// A bin of one size is not split; another size costs one or two splits, however far away it
    /// is.
    #[test]
    fn few_sizes_need_few_splits() {
        let mut bins = Bins::new();
        let base = 1 << 40;
        for _ in 0..1000 {
            bins.insert(Hole::new(0, base + 12_345, 0));
        }
        assert_eq!(bins.splits.splits.len(), 0);
        let (steps, far) = steps::of(|| bins.insert(Hole::new(0, base + (1 << 33), 0)));
        assert!(steps < 100 && bins.splits.splits.len() == 2, "{steps} steps");
        for size in [base, base + 12_344, base + 70_000, base + (1 << 33) + 1] {
            let own = bins.list_of(size);
            let above = bins.above(own).map(|list| bins.sizes_of(list).0);
            let least = if size < base + (1 << 33) { base + (1 << 33) } else { 0 };
            let expected = if size < base + 12_345 { base + 12_345 } else { least };
            // The list of the far hole is wide.
            assert!(above.unwrap_or(0) <= expected && bins.check() == Ok(1001), "{size}");
            assert!(above.is_some() || size > base + (1 << 33));
        }
        bins.remove(far);
        assert_eq!(bins.check(), Ok(1000));
        assert!(bins.splits.splits.iter().flatten().count() <= 1);
        let near = bins.insert(Hole::new(0, base + 12_346, 0));
        assert_eq!(bins.check(), Ok(1001));
        bins.remove(near);
        assert_eq!(bins.check(), Ok(1000));
        assert_eq!(bins.splits.splits.len(), 0);
        while bins.largest() > 0 {
            let id = bins.holes_from(1).next().unwrap();
            bins.remove(id);
        }
        assert_eq!(bins.check(), Ok(0));
    }

    /// A hole of a uniform list changes its size within the bin.
    #[test]
    fn a_size_changes_within_a_uniform_bin() {
        let mut bins = Bins::new();
        let base = 1 << 40;
        let same: Vec<u32> = (0..100).map(|_| bins.insert(Hole::new(0, base, 0))).collect();
        for (i, id) in (1..).zip(same) {
            bins.change(id, 0, base + i % 7);
            assert_eq!(bins.check(), Ok(100));
            assert_eq!(bins.largest(), base + i.min(6));
        }
    }

    /// The size that fills a bin is removed before the others.
    #[test]
    fn a_uniform_list_empties_within_splits() {
        let base = 1 << 40;
        for others in
            [vec![1], vec![1 << 33], vec![1, 1 << 33], (1..200).map(|i| i << 20).collect()]
        {
            let mut bins = Bins::new();
            let same: Vec<u32> = (0..100).map(|_| bins.insert(Hole::new(0, base, 0))).collect();
            let other = |&size: &u64| bins.insert(Hole::new(0, base + size, 0));
            let rest: Vec<u32> = others.iter().map(other).collect();
            let more: Vec<u32> = (0..100).map(|_| bins.insert(Hole::new(0, base, 0))).collect();
            assert_eq!(bins.check(), Ok(200 + rest.len() as u32));
            for id in same.into_iter().chain(more) {
                bins.change(id, 7, base + 5);
                assert!(bins.check().is_ok(), "{:?}", bins.check());
                bins.change(id, 7, base);
                bins.remove(id);
            }
            assert_eq!(bins.check(), Ok(rest.len() as u32));
            for id in rest {
                bins.remove(id);
            }
            assert_eq!((bins.check(), bins.largest()), (Ok(0), 0));
            assert!(bins.splits.splits.is_empty());
        }
    }

    /// Without numbers for more splits the lists are long, and correct.
    #[test]
    fn the_numbers_of_splits_run_out() {
        for max in [0, 1, 2, 5] {
            let mut bins = Bins::new();
            bins.splits.max = max;
            let sizes = (0..2000u64).map(|i| (1 << 40) + i * i * 7919 % (1 << 34));
            let ids: Vec<u32> = sizes.map(|size| bins.insert(Hole::new(0, size, 0))).collect();
            assert_eq!(bins.holes_from(1).count(), 2000);
            for id in ids.iter().step_by(2) {
                bins.remove(*id);
            }
            bins.splits.max = MOST;
            for i in 0..1000 {
                bins.insert(Hole::new(0, (1 << 40) + i, 0));
            }
            let listed = bins.holes_down_from(1 << 41).count();
            assert_eq!(listed, 2000);
        }
    }

    #[test]
    fn lists_are_walked_in_order_both_ways() {
        let mut bins = Bins::new();
        for i in 0..3000u64 {
            bins.insert(Hole::new(0, 1 + i * i * i % 100_000_007, 0));
        }
        bins.insert(Hole::new(0, 1, 0));
        let up: Vec<u32> = bins.holes_from(1).map(|id| bins.holes[id].list_id).collect();
        let mut lists = up.clone();
        lists.dedup();
        let ranges: Vec<_> = lists.iter().map(|&list_id| bins.sizes_of(list_id).0).collect();
        assert!(ranges.is_sorted());
        let mut down: Vec<u32> =
            bins.holes_down_from(100_000_007).map(|id| bins.holes[id].list_id).collect();
        down.dedup();
        down.reverse();
        assert_eq!((up.len(), lists), (3001, down));
    }
}
