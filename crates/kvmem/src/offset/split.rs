//! *Splits*: long bins cut into narrower lists, so that no call reads a long list.
//!
//! A list at its limit is replaced by a *split* when one more hole comes: 64 lists of equal width,
//! as narrow as the sizes in the list allow, and one word that says which of them hold anything.
//! These lists are split in turn; a list for one size has no limit. When few holes are left in a
//! split, they become one list again.
//!
//! ```text
//! bin            2^20 ‥ 2^20 + 16,383                       one list, or
//! split          256 bytes │ 256 bytes │ … │ 256 bytes      64 lists, or splits
//! split within     1 │ 1 │ … │ 1                            lists for one size, of any length
//! ```
//!
//! A split covers an aligned block of sizes, not all sizes of the list that it replaces. So a bin
//! with holes of one size takes one step to look up, however wide it is. When a size comes that the
//! list holds and the split does not cover, a wider split is put in between: it covers both, and
//! the one that was there becomes one of its lists. No hole is touched by that.
//!
//! Lists are at least 64 times as narrow as those of the split around them. Sizes have 64 bits, and
//! bins take up the highest seven of them, so at most ten splits stand one in the other.
//!
//! A list within a split has the place `BINS` + 128·(number of the split) + number of the list:
//! places below `BINS` are bins. Two more places of each split stand for the sizes of the list that
//! lie below the split and above it. They never hold anything, but have neighbours as lists do.

use super::bins::{BINS, Bins, LIST_MAX, PER_OCTAVE, SPLIT, UNIFORM, bin_size_min, bin_width_log2};
use super::holes::Hole;
use super::table::NIL;

/// Holes in a split that become one list again.
const MERGED: u32 = 16;
const LISTS: usize = PER_OCTAVE as usize;
const LISTS_LOG2: u32 = LISTS.ilog2();
/// The places of a split for the sizes that it does not cover: those below, and those above.
const BELOW: usize = LISTS;
const ABOVE: usize = LISTS + 1;
/// Places of each split, some of them unused.
const IDS_PER_SPLIT: u32 = 2 * PER_OCTAVE;
/// Splits there can be, that each list has a place. Runs keep the last place to themselves.
const MOST: usize = (u32::MAX as usize - BINS) / IDS_PER_SPLIT as usize - 1;

/// A list cut into narrower ones.
struct Split {
    /// The least size.
    least: u64,
    /// The logarithm of the width of each list.
    width_log2: u32,
    /// Holes in the lists of this split that are counted, without those in splits within it.
    live: u32,
    /// Which lists hold anything.
    filled: u64,
    /// Which of them are split.
    nested: u64,
    /// Which of them are not counted: a bin's list of one size becomes a list of its split without
    /// being read.
    uncounted: u64,
    /// The place of the list that was split.
    above: u32,
    /// First of each list, or the number of the split that stands in its place.
    heads: [u32; LISTS + 2],
    /// Length of each list, unless it is for one size or split.
    lengths: [u8; LISTS],
}

impl Split {
    /// A split of the list at `above` without any hole, whose lists have that width and one of
    /// which holds `size`.
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

    /// The list for `size`, or [`BELOW`] or [`ABOVE`].
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

    /// The least size of a list.
    fn least_of(&self, list: usize) -> u64 {
        self.least + ((list as u64) << self.width_log2)
    }
}

/// All splits.
pub(super) struct Splits {
    splits: Vec<Option<Box<Split>>>,
    /// Numbers that are free.
    free: Vec<u32>,
    /// Splits there may be.
    max: usize,
}

/// The place of a list within a split.
#[inline(always)]
fn list_id_in(split: u32, list: usize) -> u32 {
    BINS as u32 + split * IDS_PER_SPLIT + list as u32
}

/// The split of a place, and which of its lists it is.
#[inline(always)]
fn split_of(list_id: u32) -> (u32, usize) {
    let within = list_id - BINS as u32;
    (within / IDS_PER_SPLIT, (within % IDS_PER_SPLIT) as usize)
}

impl Splits {
    pub(super) fn new() -> Self {
        Splits { splits: Vec::new(), free: Vec::new(), max: MOST }
    }

    pub(super) fn bytes(&self) -> usize {
        let used = self.splits.len() - self.free.len();
        used * size_of::<Split>()
            + self.splits.capacity() * size_of::<Option<Box<Split>>>()
            + self.free.capacity() * size_of::<u32>()
    }

    #[inline]
    pub(super) fn head(&self, list_id: u32) -> u32 {
        let (split, list) = split_of(list_id);
        self.get(split).heads[list]
    }

    pub(super) fn head_mut(&mut self, list_id: u32) -> &mut u32 {
        let (split, list) = split_of(list_id);
        &mut self.get_mut(split).heads[list]
    }

    #[inline(always)]
    fn get(&self, split: u32) -> &Split {
        match &self.splits[split as usize] {
            Some(split) => split,
            None => gone(split),
        }
    }

    #[inline(always)]
    fn get_mut(&mut self, split: u32) -> &mut Split {
        match &mut self.splits[split as usize] {
            Some(split) => split,
            None => gone(split),
        }
    }

    /// Whether one more split has a number.
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

    /// The list of the least sizes in a split that holds anything.
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

    /// The list of the greatest sizes in a split that holds anything.
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
    /// The least size of a list, and the logarithm of its width.
    fn sizes_of(&self, list_id: u32) -> (u64, u32) {
        if (list_id as usize) < BINS {
            return (bin_size_min(list_id), bin_width_log2(list_id));
        }
        let (number, list) = split_of(list_id);
        let split = self.splits.get(number);
        (split.least_of(list), split.width_log2)
    }

    /// Whether all holes of a list are of one size.
    pub(super) fn is_of_one_size(&self, list_id: u32) -> bool {
        self.is_uniform(list_id) || self.sizes_of(list_id).1 == 0
    }

    /// Puts a hole into the list of its size, where the bin is split or has to be.
    #[inline(never)]
    pub(super) fn list_in_split(&mut self, id: u32, bin: u32) {
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

    /// Prepares the list of a bin at its limit for one more hole, of `size` bytes; says whether the
    /// bin is split then. O([`LIST_MAX`]).
    #[cold]
    fn is_split_for(&mut self, bin: u32, size: u64) -> bool {
        let first = self.first(bin);
        let one = self.holes[first].size;
        if self.lengths[bin as usize] == UNIFORM {
            // Another size than that of the list.
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

    /// Splits a list; says whether there was a number left for that. O([`LIST_MAX`]).
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
            // From the last to the first: so each list has the order that the holes had.
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

    /// Puts the split `number` in the place of a list, or of a split; returns what was there.
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

    /// Puts a split around the split `number`, in its place, so that `size` is covered as well;
    /// `None`: there is no number left. O(1).
    #[cold]
    fn widen(&mut self, number: u32, size: u64) -> Option<u32> {
        if !self.splits.has_room() {
            return None;
        }
        let &Split { least, width_log2, above, .. } = self.splits.get(number);
        // One list has to cover the split, and all lists together the size.
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

    /// Makes one list of a whole bin, with the hole in it, when there are no numbers for splits.
    /// O(holes of the bin).
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

    /// Takes a hole out of a list within a split.
    #[inline(never)]
    pub(super) fn unlist_from_split(&mut self, id: u32, list_id: u32) {
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

    /// Makes one list of a split with few holes, and of those around it that have few holes then;
    /// replaces a split that has nothing but another split or an uncounted list in it by that.
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

    /// Collects the holes of a split and of those within it, and gives the splits back.
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

    /// The place of `size` within a bin that is split.
    #[inline(never)]
    pub(super) fn list_below(&self, bin: u32, size: u64) -> u32 {
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

    /// The list of the least sizes in a bin that is split.
    #[inline(never)]
    pub(super) fn lowest(&self, bin: u32) -> u32 {
        self.splits.lowest(self.first(bin))
    }

    /// The list of the greatest sizes in a bin that is split.
    pub(super) fn highest(&self, bin: u32) -> u32 {
        self.splits.highest(self.first(bin))
    }

    /// As [`above`](Bins::above), of a place within a split.
    #[inline(never)]
    pub(super) fn above_in_split(&self, mut list_id: u32) -> Option<u32> {
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

    /// As [`below`](Bins::below), of a place within a split.
    pub(super) fn below_in_split(&self, mut list_id: u32) -> Option<u32> {
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

    /// Checks what stands at a place that is split, for sizes of `least` to `max` bytes; how many
    /// holes there are.
    pub(super) fn check_split(&self, list_id: u32, least: u64, max: u64) -> Result<u32, String> {
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

/// A number without a split: the bins are broken.
#[cold]
fn gone(split: u32) -> ! {
    panic!("split {split} does not exist");
}

#[cfg(test)]
mod tests {
    use super::super::holes::Hole;
    use super::super::steps;
    use super::*;

    /// Holes of these sizes go in and out again, in another order; the lists are right all the
    /// time.
    fn in_and_out(sizes: &[u64], stride: usize) {
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
        in_and_out(&(0..5000).map(|i| (1 << 20) + i * 3 % 16_384).collect::<Vec<_>>(), 1237);
        in_and_out(&(0..5000).map(|i| (1 << 50) + i % 70).collect::<Vec<_>>(), 1237);
        in_and_out(&[1 << 62; 3000], 7);
        in_and_out(&[77; 3000], 7);
        in_and_out(&[[1 << 40, (1 << 40) + 1]; 1000].concat(), 999);
        in_and_out(&(1..4000).map(|i| i * i).collect::<Vec<_>>(), 1000);
    }

    /// A bin of one size is not split; another size costs one or two splits, however far away it is.
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

    /// The size that fills a bin goes before the others do.
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

    /// Without a number for one more split the lists are long, and right.
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
