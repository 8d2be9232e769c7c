//! *Ranges*: allocations, found by their start.
//!
//! With tens of thousands of ranges in random order, the cost of a look-up is the cache lines that
//! it waits for. Therefore this hash table has only its entries: no control bytes and no keys,
//! because an allocation contains its start. An entry has 20 bytes, so most look-ups touch one
//! line, or two adjacent ones.
//!
//! ```text
//!   home(16)┐    home(32) = home(96)┐
//!   ┌───────▼┬────────┬─────────────▼───┬────────┬────────┐
//!   │ 16     │        │ 32     │ 96     │        │        │
//!   └────────┴────────┴────────┴────────┴────────┴────────┘
//! ```
//!
//! An entry is in the first free slot from its home on. When an entry is removed, later entries
//! that could no longer be found move up, so no trace remains (Knuth, *The Art of Computer
//! Programming*, volume 3, 6.4, algorithm R).
//!
//! Ranges of one size begin at multiples of it. A hash that is one product, for example with the
//! golden ratio, spreads the multiples of most sizes more evenly than random numbers; but those of
//! some sizes end up a thousand slots from home. Two products are as good as random numbers for
//! every size: 0.8 slots from home on average when the table is fullest.

use std::mem;

use kvmem::offset::Allocation;

/// Number of slots of the smallest table.
const FEW: usize = 16;
/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Allocations by start. All starts differ.
#[derive(Default)]
pub(crate) struct Ranges {
    /// The slots: a power of two, or none. At most five eighths are in use.
    slots: Vec<Option<Allocation>>,
    /// Number of product bits below those of the home.
    shift: u32,
    len: usize,
}

impl Ranges {
    /// Returns the number of allocations.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.slots.iter().flatten()
    }

    /// Returns the allocation that begins at `start`.
    #[inline]
    pub(crate) fn get(&self, at: u64) -> Option<&Allocation> {
        self.slots.get(self.find(at)?)?.as_ref()
    }

    /// Inserts an allocation. No other may have its start.
    #[inline]
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        if self.len >= self.slots.len() / 8 * 5 {
            self.grow();
        }
        self.len += 1;
        self.put(allocation);
    }

    /// Removes the allocation that begins at `start`.
    #[inline]
    pub(crate) fn remove(&mut self, at: u64) -> Option<Allocation> {
        let mut gap = self.find(at)?;
        let taken = self.slots[gap].take();
        self.len -= 1;
        let mask = self.slots.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + 1) & mask;
            let Some(allocation) = &self.slots[slot] else { return taken };
            // Its distance from home, and the distance of the gap behind it: it may move as far as
            // home.
            let from_home = slot.wrapping_sub(self.home(allocation.offset())) & mask;
            if from_home >= (slot.wrapping_sub(gap) & mask) {
                self.slots.swap(gap, slot);
                gap = slot;
            }
        }
    }

    #[inline]
    fn home(&self, at: u64) -> usize {
        let upper = at.wrapping_mul(GOLDEN);
        ((upper ^ upper >> 32).wrapping_mul(GOLDEN) >> self.shift) as usize
    }

    /// Returns the slot of the allocation that begins at `start`.
    #[inline]
    fn find(&self, at: u64) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut slot = self.home(at) & mask;
        loop {
            match &self.slots[slot] {
                Some(allocation) if allocation.offset() == at => return Some(slot),
                Some(_) => slot = (slot + 1) & mask,
                None => return None,
            }
        }
    }

    #[inline]
    fn put(&mut self, allocation: Allocation) {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(allocation.offset()) & mask;
        while self.slots[slot].is_some() {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = Some(allocation);
    }

    #[cold]
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(FEW);
        let old = mem::replace(&mut self.slots, Vec::from_iter((0..slots).map(|_| None)));
        self.shift = u64::BITS - slots.ilog2();
        old.into_iter().flatten().for_each(|allocation| self.put(allocation));
    }
}

/// They run as part of `tests/ranges.rs`.
#[cfg(test)]
mod tests {
    use super::*;
    use kvmem::offset::OffsetAllocator;

    /// Returns the average number of slots between an entry and its home.
    fn strayed(ranges: &Ranges) -> f64 {
        let mask = ranges.slots.len() - 1;
        let entries =
            ranges.slots.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.as_ref()?)));
        let sum: usize =
            entries.map(|(slot, it)| slot.wrapping_sub(ranges.home(it.offset())) & mask).sum();
        sum as f64 / ranges.len() as f64
    }

    #[test]
    fn multiples_of_any_size_spread() {
        for units in (0..40).map(|power| 1 << power).chain((1..8192).step_by(41)) {
            let space = OffsetAllocator::new(units * 5600).unwrap();
            let mut ranges = Ranges::default();
            let batch = space.allocate_batch(units, 5600).unwrap();
            // 5,090 of 8,192 slots are used: the maximum load.
            for allocation in batch.into_iter().filter(|it| it.offset() / units % 11 != 0) {
                ranges.insert(allocation);
            }
            assert_eq!(ranges.slots.len(), 8192);
            let mean = strayed(&ranges);
            assert!(mean < 1.2, "multiples of {units} are {mean} slots from home on average");
        }
    }
}
