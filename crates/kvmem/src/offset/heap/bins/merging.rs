//! *Merging*: the lists of a split with few holes become one list again.

use super::super::chunked_table::NIL;
use super::bin_sizes::BINS;
use super::lists::{HoleLists, UNIFORM};
use super::splits::{Split, split_of};

/// Number of holes in a split that become one list again.
pub(super) const MERGED: u32 = 16;

impl HoleLists {
    /// Removes the hole between `prev` and `next` from a list within a split; its record is not
    /// read.
    #[inline(never)]
    pub(super) fn unlist_from_split(&mut self, (prev, next): (u32, u32), list_id: u32) {
        let (number, list) = split_of(list_id);
        let split = self.splits.get_mut(number);
        // The length of a list for one size is always 0.
        split.lengths[list] = split.lengths[list].saturating_sub(1);
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
}
