//! *Bin check*: lists, splits and bitmaps agree.

use super::super::chunked_table::NIL;
use super::bin_sizes::{BINS, PER_OCTAVE, bin_size_max, bin_size_min};
use super::lists::{HoleLists, LIST_MAX, SPLIT, UNIFORM};
use super::merging::MERGED;
use super::splits::{LISTS, Split, list_id_in};

impl HoleLists {
    /// Checks that lists and bitmaps agree; returns the number of binned holes.
    pub(super) fn check(&self) -> Result<u32, String> {
        let mut binned = 0;
        for first in (0..BINS).step_by(PER_OCTAVE as usize) {
            let octave = first..first + PER_OCTAVE as usize;
            // Compares at once: most octaves are empty, and tests check after each call.
            let is_empty = self.lengths[octave.clone()] == [0; PER_OCTAVE as usize]
                && self.heads[octave.clone()] == [NIL; PER_OCTAVE as usize];
            if is_empty && self.bitmap.is_clear(first as u32) {
                continue;
            }
            for bin in octave {
                binned += self.check_bin(bin as u32)?;
            }
        }
        Ok(binned)
    }

    /// Checks one bin; returns the number of its holes.
    fn check_bin(&self, bin: u32) -> Result<u32, String> {
        let length = self.lengths[bin as usize % BINS];
        let filled = length == SPLIT || self.heads[bin as usize % BINS] != NIL;
        self.bitmap.check(bin, filled)?;
        let (min, max) = (bin_size_min(bin), bin_size_max(bin));
        match length {
            0 if !filled => Ok(0),
            SPLIT => self.check_split(bin, min, max),
            _ => self.check_list(bin, (min, max), min < max, length),
        }
    }

    /// Checks one list of holes of `min` to `max` bytes; returns their number.
    fn check_list(
        &self,
        list_id: u32,
        (min, max): (u64, u64),
        wide: bool,
        length: u8,
    ) -> Result<u32, String> {
        let (mut prev, mut holes) = (NIL, 0);
        for id in self.holes_of(list_id) {
            let hole = &self.holes[id];
            let listed = self.list_id_of(id) == list_id && hole.prev == prev;
            if !listed || !(min..=max).contains(&hole.size) {
                return Err(format!(
                    "hole {id} in list {list_id} of {min} to {max} bytes: {hole:?}"
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

    /// Checks the split of a list that holds sizes of `min` to `max` bytes; returns the number
    /// of its holes.
    fn check_split(&self, list_id: u32, min: u64, max: u64) -> Result<u32, String> {
        let number = self.first(list_id);
        let split = self.splits.get(number);
        let Split { above, live, nested, uncounted, filled, .. } = *split;
        let few = live <= MERGED && nested | uncounted == 0;
        if above != list_id || few || (nested | uncounted) & !filled != 0 {
            return Err(format!("split {number} at {list_id} says {above}, {live} holes"));
        }
        let (mut holes, mut inner) = (0, 0);
        for list in 0..LISTS {
            let first = split.min_of(list).max(min);
            let last = (split.min_of(list) + ((1 << split.width_log2) - 1)).min(max);
            let filled = split.heads[list] != NIL;
            if filled != (split.filled >> list & 1 == 1) {
                return Err(format!("list {list} of split {number}: filled {filled}"));
            }
            if filled && first > last {
                return Err(format!("list {list} of split {number} is beyond {min} to {max}"));
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
