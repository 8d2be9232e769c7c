//! *Ranges*: allocations, found by where they begin.
//!
//! With tens of thousands of ranges, of which any may be next, what a look-up costs is the cache
//! lines that it has to wait for. So this is a hash table without anything beside the entries: no
//! bytes of control, no keys, for an allocation knows where it begins. It is 20 bytes long, so that
//! most look-ups touch one line, or two in a row.
//!
//! ```text
//!   home(16)┐    home(32) = home(96)┐
//!   ┌───────▼┬────────┬─────────────▼───┬────────┬────────┐
//!   │ 16     │        │ 32     │ 96     │        │        │      an entry is in the first free slot from its home on
//!   └────────┴────────┴────────┴────────┴────────┴────────┘
//! ```
//!
//! Where an entry goes, those behind it that would not be found any more move up, so that nothing
//! tells that it was there (Knuth, *The Art of Computer Programming*, volume 3, 6.4, algorithm R).
//!
//! Ranges of one size begin at multiples of it. A hash that is one product, say with the golden
//! ratio, spreads the multiples of most sizes more evenly than chance does; but those of some end
//! up a thousand slots from home. Two products are as good as chance for every size: 0.8 slots from
//! home on average when the table is fullest.

use std::mem;

use kvmem::offset::Allocation;

/// Slots of the smallest table.
const FEW: usize = 16;
/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Allocations by where they begin, of which each is somewhere else.
#[derive(Default)]
pub(crate) struct Ranges {
    /// A power of two, or none. At most five eighths are in use.
    slots: Vec<Option<Allocation>>,
    /// Bits of a product below those that say home.
    shift: u32,
    len: usize,
}

impl Ranges {
    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.slots.iter().flatten()
    }

    /// The one that begins there.
    #[inline]
    pub(crate) fn get(&self, at: u64) -> Option<&Allocation> {
        self.slots.get(self.find(at)?)?.as_ref()
    }

    /// Puts one in. None may begin where it does.
    #[inline]
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        if self.len >= self.slots.len() / 8 * 5 {
            self.grow();
        }
        self.len += 1;
        self.put(allocation);
    }

    /// Takes out the one that begins there.
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
            // How far it is from home, and how far the gap is behind it: it may go as far as home.
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

    /// The slot of the one that begins there.
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

    /// How many slots lie between an entry and its home, on average.
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
            // 5,090 of 8,192 slots are used, which is as full as it becomes.
            for allocation in batch.into_iter().filter(|it| it.offset() / units % 11 != 0) {
                ranges.insert(allocation);
            }
            assert_eq!(ranges.slots.len(), 8192);
            let mean = strayed(&ranges);
            assert!(mean < 1.2, "multiples of {units} are {mean} slots from home on average");
        }
    }
}
