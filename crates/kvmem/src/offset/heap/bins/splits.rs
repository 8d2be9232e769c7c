//! *Splits*: long bins divided into narrower lists, which keeps every list short.
//!
//! When a hole comes to a list at its limit, a *split* replaces the list: 64 lists of equal width,
//! as narrow as the sizes in the list allow, and one word that says which of them are non-empty.
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

use super::super::chunked_table::{ChunkedTable, NIL, TableSlot};
use super::bin_sizes::{BINS, PER_OCTAVE};

/// Number of lists in a split.
pub(super) const LISTS: usize = PER_OCTAVE as usize;
pub(super) const LISTS_LOG2: u32 = LISTS.ilog2();
/// Ids for the sizes that a split does not cover: those below, and those above.
const BELOW: usize = LISTS;
const ABOVE: usize = LISTS + 1;
/// List ids of each split, some of them unused.
const IDS_PER_SPLIT: u32 = 2 * PER_OCTAVE;
/// Upper bound of the number of splits, from the list ids. The greatest ids mark holes outside
/// of the bins.
pub(super) const MAX_SPLITS: usize = (u32::MAX as usize - BINS) / IDS_PER_SPLIT as usize - 1;

/// Splits in a chunk of the table: some 1.7 KB.
const CHUNK_SPLITS: usize = 4;

/// A list divided into narrower ones.
#[derive(Clone, Copy)]
pub(super) struct Split {
    /// The least size.
    pub(super) min: u64,
    /// Binary logarithm of the width of each list.
    pub(super) width_log2: u32,
    /// Counted holes in the lists of this split, without those in nested splits.
    pub(super) live: u32,
    /// Bitmap of the non-empty lists.
    pub(super) filled: u64,
    /// Bitmap of the lists that are split.
    pub(super) nested: u64,
    /// Bitmap of the uncounted lists: a bin's uniform list becomes a list of its split without
    /// being read.
    pub(super) uncounted: u64,
    /// Id of the list that was split.
    pub(super) above: u32,
    /// First hole of each list, or the number of the nested split that replaces it.
    pub(super) heads: [u32; LISTS + 2],
    /// Length of each list, or 0 if it is for one size or split.
    pub(super) lengths: [u8; LISTS],
}

impl Split {
    /// Creates an empty split of the list `above`, whose lists have this width; one of them is
    /// for `size`.
    pub(super) const fn new(above: u32, size: u64, width_log2: u32) -> Self {
        let covered_log2 = width_log2 + LISTS_LOG2;
        Split {
            min: size >> covered_log2 << covered_log2,
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
    pub(super) fn list_for(&self, size: u64) -> usize {
        let list = size.wrapping_sub(self.min) >> self.width_log2;
        match list < LISTS as u64 {
            true => list as usize,
            false if size < self.min => BELOW,
            false => ABOVE,
        }
    }

    #[inline(always)]
    pub(super) fn is_nested(&self, list: usize) -> bool {
        self.nested >> list & 1 == 1
    }

    /// Returns the least size of a list.
    pub(super) fn min_of(&self, list: usize) -> u64 {
        self.min + ((list as u64) << self.width_log2)
    }
}

impl TableSlot for Split {
    const EMPTY: Self = Split::new(NIL, 0, 0);
}

/// All splits.
pub(super) struct Splits(ChunkedTable<Split, CHUNK_SPLITS>);

/// Returns the id of a list within a split.
#[inline(always)]
pub(super) fn list_id_in(split: u32, list: usize) -> u32 {
    BINS as u32 + split * IDS_PER_SPLIT + list as u32
}

/// Returns the split of a list id, and the number of the list within it.
#[inline(always)]
pub(super) fn split_of(list_id: u32) -> (u32, usize) {
    let within = list_id - BINS as u32;
    (within / IDS_PER_SPLIT, (within % IDS_PER_SPLIT) as usize)
}

impl Splits {
    pub(super) fn new() -> Self {
        Splits(ChunkedTable::new(MAX_SPLITS as u32))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
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
    pub(super) fn get(&self, split: u32) -> &Split {
        &self.0[split]
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, split: u32) -> &mut Split {
        &mut self.0[split]
    }

    /// Returns whether a number for one more split is left.
    pub(super) fn has_free_number(&self) -> bool {
        self.0.remaining() > 0
    }

    pub(super) fn insert(&mut self, split: Split) -> u32 {
        self.0.insert(split)
    }

    pub(super) fn remove(&mut self, split: u32) {
        self.0.remove(split);
    }

    /// Returns the non-empty list of the least sizes in a split.
    #[inline(always)]
    pub(super) fn lowest(&self, mut number: u32) -> u32 {
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
    pub(super) fn highest(&self, mut number: u32) -> u32 {
        loop {
            let split = self.get(number);
            let list = split.filled.ilog2() as usize;
            match split.is_nested(list) {
                true => number = split.heads[list],
                false => return list_id_in(number, list),
            }
        }
    }

    /// Returns the list for `size` within the split `number` or a nested one.
    #[inline(always)]
    pub(super) fn list_for(&self, mut number: u32, size: u64) -> u32 {
        loop {
            let split = self.get(number);
            let list = split.list_for(size);
            if list >= LISTS || !split.is_nested(list) {
                return list_id_in(number, list);
            }
            number = split.heads[list];
        }
    }

    /// Returns the next non-empty list of greater sizes, or the bin of the outermost split if that
    /// has none.
    #[inline(always)]
    pub(super) fn above(&self, mut list_id: u32) -> Result<u32, u32> {
        while list_id as usize >= BINS {
            let (number, list) = split_of(list_id);
            let split = self.get(number);
            let above = match list {
                BELOW => split.filled,
                ABOVE => 0,
                list => split.filled & (!1 << list),
            };
            if above != 0 {
                let list = above.trailing_zeros() as usize;
                return Ok(match split.is_nested(list) {
                    true => self.lowest(split.heads[list]),
                    false => list_id_in(number, list),
                });
            }
            list_id = split.above;
        }
        Err(list_id)
    }

    /// Returns the next non-empty list of smaller sizes, or the bin of the outermost split if that
    /// has none.
    pub(super) fn below(&self, mut list_id: u32) -> Result<u32, u32> {
        while list_id as usize >= BINS {
            let (number, list) = split_of(list_id);
            let split = self.get(number);
            let below = match list {
                BELOW => 0,
                ABOVE => split.filled,
                list => split.filled & !(!0 << list),
            };
            if below != 0 {
                let list = below.ilog2() as usize;
                return Ok(match split.is_nested(list) {
                    true => self.highest(split.heads[list]),
                    false => list_id_in(number, list),
                });
            }
            list_id = split.above;
        }
        Err(list_id)
    }

    /// Sets the upper bound of the number of splits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn set_max(&mut self, max: usize) {
        self.0.set_max(max as u32);
    }

    /// Returns the number of splits that exist.
    #[cfg(all(test, not(loom)))]
    pub(super) fn live(&self) -> usize {
        self.0.live() as usize
    }
}
