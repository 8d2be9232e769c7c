//! *Splits*: long bins cut into narrower lists, so that no list has to be read far.
//!
//! A list that is as long as it may be is replaced by a *split* when one more hole comes: 64 lists,
//! each for 1/64 of its sizes, and a word that says which of them hold anything. They are split
//! likewise, down to lists for one size. As sizes have 64 bits, and bins take up the highest seven
//! of them, at most ten splits stand one in the other. When few holes are left in a split, they
//! become one list again.
//!
//! ```text
//! bin            2^20 ‥ 2^20 + 16,383                     one list, or
//! split          256 bytes │ 256 bytes │ … │ 256 bytes    64 lists, or splits
//! split within             4 │ 4 │ … │ 4                  64 lists, or splits
//! split within               1 │ 1 │ 1 │ 1                lists for one size, of any length
//! ```
//!
//! A list within a split has the place 64·(64 + number of the split) + number of the list: those
//! below are bins.

use super::bins::{BINS, Bins, LIST_MAX, PER_OCTAVE, SPLIT, bin_size_min, bin_width_log2};
use super::table::NIL;

/// Holes in a split that become one list again.
const MERGED: u32 = 16;
/// Splits there can be, that each list has a place.
const MOST: usize = 1 << 25;
const LISTS: usize = PER_OCTAVE as usize;
const LISTS_LOG2: u32 = LISTS.ilog2();

/// A list cut into narrower ones.
struct Split {
    /// First of each list, or the number of the split that stands in its place.
    heads: [u32; LISTS],
    /// Length of each list, unless it is for one size, or [`SPLIT`].
    lengths: [u8; LISTS],
    /// Which lists hold anything.
    filled: u64,
    /// Holes in all of them.
    live: u32,
    /// The place of the list that was split.
    above: u32,
    /// The least size.
    least: u64,
    /// The logarithm of the width of each list.
    width_log2: u32,
}

/// All splits.
#[derive(Default)]
pub(super) struct Splits {
    splits: Vec<Option<Box<Split>>>,
    /// Numbers that are free.
    free: Vec<u32>,
}

/// The place of a list within a split.
fn place_in(split: u32, list: u32) -> u32 {
    BINS as u32 + split * PER_OCTAVE + list
}

/// The split of a place, and which of its lists it is.
fn split_of(place: u32) -> (u32, usize) {
    let within = place - BINS as u32;
    (within / PER_OCTAVE, (within % PER_OCTAVE) as usize)
}

impl Splits {
    pub(super) fn bytes(&self) -> usize {
        let used = self.splits.len() - self.free.len();
        used * size_of::<Split>()
            + self.splits.capacity() * size_of::<Option<Box<Split>>>()
            + self.free.capacity() * size_of::<u32>()
    }

    pub(super) fn head(&self, place: u32) -> u32 {
        let (split, list) = split_of(place);
        self.get(split).heads[list]
    }

    pub(super) fn head_mut(&mut self, place: u32) -> &mut u32 {
        let (split, list) = split_of(place);
        &mut self.get_mut(split).heads[list]
    }

    fn get(&self, split: u32) -> &Split {
        match &self.splits[split as usize] {
            Some(split) => split,
            None => gone(split),
        }
    }

    fn get_mut(&mut self, split: u32) -> &mut Split {
        match &mut self.splits[split as usize] {
            Some(split) => split,
            None => gone(split),
        }
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
            *self = Splits::default();
        }
    }
}

impl Bins {
    /// The length of a list as it is counted, or [`SPLIT`].
    fn length(&mut self, place: u32) -> &mut u8 {
        match self.lengths.get_mut(place as usize) {
            Some(length) => length,
            None => {
                let (split, list) = split_of(place);
                &mut self.splits.get_mut(split).lengths[list]
            }
        }
    }

    /// The least size of a list, and the logarithm of its width.
    fn sizes_of(&self, place: u32) -> (u64, u32) {
        if (place as usize) < BINS {
            return (bin_size_min(place), bin_width_log2(place));
        }
        let (split, list) = split_of(place);
        let Split { least, width_log2, .. } = *self.splits.get(split);
        (least + ((list as u64) << width_log2), width_log2)
    }

    /// Whether all holes of a list are of one size.
    pub(super) fn is_of_one_size(&self, place: u32) -> bool {
        self.sizes_of(place).1 == 0
    }

    /// Puts a hole into the list of its size, where the bin is split or has to be.
    #[inline(never)]
    pub(super) fn list_deep(&mut self, id: u32, bin: u32) {
        let size = self.holes[id].size;
        let mut place = bin;
        loop {
            let length = *self.length(place);
            match length {
                SPLIT => {
                    let number = self.first(place);
                    let split = self.splits.get_mut(number);
                    let list = (size - split.least) >> split.width_log2;
                    split.live += 1;
                    split.filled |= 1 << list;
                    place = place_in(number, list as u32);
                }
                LIST_MAX if self.split(place) => {}
                _ => break,
            }
        }
        self.add_to(place, id);
    }

    /// Puts a hole into a list that is not split.
    fn add_to(&mut self, place: u32, id: u32) {
        let wide = self.sizes_of(place).1 > 0;
        let length = self.length(place);
        *length = (*length + u8::from(wide)).min(LIST_MAX);
        self.link_first(id, place);
    }

    /// Splits a list; says whether there was a number left for that. O([`LIST_MAX`]).
    fn split(&mut self, place: u32) -> bool {
        if self.splits.splits.len() >= MOST {
            return false;
        }
        let (least, width_log2) = self.sizes_of(place);
        let mut ids = [NIL; LIST_MAX as usize];
        let mut rest = std::mem::replace(self.head_of(place), NIL);
        let number = self.splits.insert(Split {
            heads: [NIL; LISTS],
            lengths: [0; LISTS],
            filled: 0,
            live: 0,
            above: place,
            least,
            width_log2: width_log2.saturating_sub(LISTS_LOG2),
        });
        (*self.head_of(place), *self.length(place)) = (number, SPLIT);
        while rest != NIL {
            let mut len = 0;
            while rest != NIL && len < ids.len() {
                ids[len] = rest;
                len += 1;
                rest = self.holes[rest].next;
            }
            // From the last to the first: so each list has the order that the holes had.
            for &id in ids[..len].iter().rev() {
                let split = self.splits.get_mut(number);
                let list = (self.holes[id].size - split.least) >> split.width_log2;
                split.live += 1;
                split.filled |= 1 << list;
                self.add_to(place_in(number, list as u32), id);
            }
        }
        true
    }

    fn head_of(&mut self, place: u32) -> &mut u32 {
        if (place as usize) < BINS {
            &mut self.heads[place as usize]
        } else {
            self.splits.head_mut(place)
        }
    }

    /// Takes a hole out of a list within a split.
    #[inline(never)]
    pub(super) fn unlist_deep(&mut self, id: u32, place: u32) {
        let emptied = self.link_around(id, place);
        let (mut number, list) = split_of(place);
        let split = self.splits.get_mut(number);
        split.lengths[list] = split.lengths[list].saturating_sub(u8::from(split.width_log2 > 0));
        if emptied {
            split.filled &= !(1 << list);
        }
        // The outermost split with few holes becomes a list.
        let mut few = None;
        loop {
            let split = self.splits.get_mut(number);
            split.live -= 1;
            if split.live <= MERGED {
                few = Some(number);
            }
            if (split.above as usize) < BINS {
                break;
            }
            number = split_of(split.above).0;
        }
        if let Some(number) = few {
            self.merge(number);
        }
    }

    /// Makes one list of a split with few holes. O([`MERGED`]).
    fn merge(&mut self, number: u32) {
        let place = self.splits.get(number).above;
        let mut ids = [NIL; MERGED as usize];
        let mut len = 0;
        self.gather(number, &mut ids, &mut len);
        (*self.head_of(place), *self.length(place)) = (NIL, 0);
        for &id in ids[..len].iter().rev() {
            self.add_to(place, id);
        }
    }

    /// Collects the holes of a split, and gives the split back.
    fn gather(&mut self, number: u32, ids: &mut [u32; MERGED as usize], len: &mut usize) {
        let mut filled = self.splits.get(number).filled;
        while filled != 0 {
            let list = filled.trailing_zeros();
            filled &= filled - 1;
            let place = place_in(number, list);
            let mut id = self.first(place);
            if *self.length(place) == SPLIT {
                self.gather(id, ids, len);
                continue;
            }
            while id != NIL && *len < ids.len() {
                ids[*len] = id;
                *len += 1;
                id = self.holes[id].next;
            }
        }
        self.splits.remove(number);
    }

    /// The list of `size` within a place that is split.
    #[cold]
    pub(super) fn list_below(&self, bin: u32, size: u64) -> u32 {
        let mut place = bin;
        while self.is_split(place) {
            let number = self.first(place);
            let split = self.splits.get(number);
            place = place_in(number, ((size - split.least) >> split.width_log2) as u32);
        }
        place
    }

    fn is_split(&self, place: u32) -> bool {
        match self.lengths.get(place as usize) {
            Some(&length) => length == SPLIT,
            None => {
                let (split, list) = split_of(place);
                self.splits.get(split).lengths[list] == SPLIT
            }
        }
    }

    /// The list of the least sizes within a place that holds something.
    #[cold]
    pub(super) fn lowest(&self, mut place: u32) -> u32 {
        while self.is_split(place) {
            let number = self.first(place);
            place = place_in(number, self.splits.get(number).filled.trailing_zeros());
        }
        place
    }

    /// The list of the greatest sizes within a place that holds something.
    pub(super) fn highest(&self, mut place: u32) -> u32 {
        while self.is_split(place) {
            let number = self.first(place);
            place = place_in(number, self.splits.get(number).filled.ilog2());
        }
        place
    }

    /// As [`above`](Bins::above), of a list within a split.
    #[cold]
    pub(super) fn above_deep(&self, mut place: u32) -> Option<u32> {
        while place as usize >= BINS {
            let (number, list) = split_of(place);
            let split = self.splits.get(number);
            let above = split.filled & (!1 << list);
            if above != 0 {
                return Some(self.lowest(place_in(number, above.trailing_zeros())));
            }
            place = split.above;
        }
        self.above(place)
    }

    /// As [`below`](Bins::below), of a list within a split.
    pub(super) fn below_deep(&self, mut place: u32) -> Option<u32> {
        while place as usize >= BINS {
            let (number, list) = split_of(place);
            let split = self.splits.get(number);
            let below = split.filled & !(!0 << list);
            if below != 0 {
                return Some(self.highest(place_in(number, below.ilog2())));
            }
            place = split.above;
        }
        self.below(place)
    }

    /// Checks what stands at a place that is split, for sizes of `least` to `most` bytes; how many
    /// holes there are.
    pub(super) fn check_split(&self, place: u32, least: u64, most: u64) -> Result<u32, String> {
        let number = self.first(place);
        let split = self.splits.get(number);
        if (split.above, split.least) != (place, least) || split.live <= MERGED {
            let Split { above, least, live, .. } = *split;
            return Err(format!("split {number} at {place} says {above}, {least}, {live} holes"));
        }
        let mut holes = 0;
        for list in 0..LISTS {
            let first = least + ((list as u64) << split.width_log2);
            if first > most {
                break;
            }
            let last = first + ((1 << split.width_log2) - 1);
            let (inner, length) = (place_in(number, list as u32), split.lengths[list]);
            let filled = length == SPLIT || split.heads[list] != NIL;
            if filled != (split.filled >> list & 1 == 1) {
                return Err(format!("list {list} of split {number}: filled {filled}"));
            }
            holes += match length {
                SPLIT => self.check_split(inner, first, last)?,
                _ => self.check_list(inner, first, last, length)?,
            };
        }
        if holes != split.live {
            return Err(format!("split {number} has {holes} holes, not {}", split.live));
        }
        Ok(holes)
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

    #[test]
    fn lists_are_walked_in_order_both_ways() {
        let mut bins = Bins::new();
        for i in 0..3000u64 {
            bins.insert(Hole::new(0, 1 + i * i * i % 100_000_007, 0));
        }
        bins.insert(Hole::new(0, 1, 0));
        let up: Vec<u32> = bins.holes_from(1).map(|id| bins.holes[id].place).collect();
        let mut lists = up.clone();
        lists.dedup();
        let ranges: Vec<_> = lists.iter().map(|&place| bins.sizes_of(place).0).collect();
        assert!(ranges.is_sorted());
        let mut down: Vec<u32> =
            bins.holes_down_from(100_000_007).map(|id| bins.holes[id].place).collect();
        down.dedup();
        down.reverse();
        assert_eq!((up.len(), lists), (3001, down));
    }
}
