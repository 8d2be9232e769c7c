//! *Splitting*: a list at its limit becomes a split, and a split becomes wider.

use super::super::chunked_table::NIL;
use super::bin_sizes::BINS;
use super::lists::{HoleLists, LIST_MAX, SPLIT, UNIFORM};
use super::splits::{LISTS, LISTS_LOG2, Split, list_id_in, split_of};

impl HoleLists {
    /// Puts a hole into the list of its size, if its bin is split or at its limit.
    #[inline(never)]
    pub(super) fn list_in_split(&mut self, id: u32, bin: u32) {
        let size = self.holes[id].size;
        if self.lengths[bin as usize % BINS] != SPLIT && !self.split_for(bin, size) {
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
    fn split_for(&mut self, bin: u32, size: u64) -> bool {
        let first = self.first(bin);
        let one = self.holes[first].size;
        if self.lengths[bin as usize] == UNIFORM {
            // The size differs from that of the list.
            let len = self.holes_of(bin).take(LIST_MAX as usize).count() as u8;
            if len < LIST_MAX || !self.splits.has_free_number() {
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
        if !self.splits.has_free_number() {
            return false;
        }
        let sizes = self.holes_of(list_id).map(|id| self.holes[id].size);
        let (min, max) =
            sizes.fold((u64::MAX, 0), |(min, max), size| (min.min(size), max.max(size)));
        let differing = (min ^ max).checked_ilog2().unwrap_or(0);
        let width_log2 = (differing + 1).saturating_sub(LISTS_LOG2);
        let number = self.splits.insert(Split::new(list_id, min, width_log2));
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
    pub(super) fn replace(&mut self, list_id: u32, number: u32) -> u32 {
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
        if !self.splits.has_free_number() {
            return None;
        }
        let &Split { min, width_log2, above, .. } = self.splits.get(number);
        // One list must cover the inner split, and all lists together must cover the size.
        let width_log2 =
            (width_log2 + LISTS_LOG2).max(((min ^ size).ilog2() + 1).saturating_sub(LISTS_LOG2));
        let mut wider = Split::new(above, size, width_log2);
        let list = wider.list_for(min);
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
}
