//! *Page span*: 2 MiB of pages, and which of them are free.
//!
//! Two bits for each unit of 4 KiB say whether the unit is free, and whether it was in a slab
//! before. A run is a power of two of units at a multiple of its length, within one word of bits.

use std::ops::Range;
use std::ptr::NonNull;

/// The smallest slab, in bytes.
pub(crate) const UNIT: usize = 4096;
/// The size of a span, in bytes.
pub(crate) const SPAN: usize = 2 << 20;

pub(crate) const UNITS: usize = SPAN / UNIT;
const WORDS: usize = UNITS / 64;
/// Runs have 2^0 to 2^6 units.
pub(crate) const ORDERS: usize = 7;
/// One span. `free` and `dirty` have one bit per unit.
pub(crate) struct PageSpan {
    pub(crate) base: NonNull<u8>,
    free: [u64; WORDS],
    /// A subset of `free`.
    dirty: [u64; WORDS],
    pub(crate) free_units: usize,
    /// The number of units within the source; all but at the ends of a region.
    pub(crate) units: usize,
}

/// Finds a free run of `2^order` units at a multiple of its length in a word; returns its first
/// bit.
#[inline]
pub(crate) fn run_in(word: u64, order: usize) -> Option<u32> {
    const STARTS: [u64; ORDERS] = [
        u64::MAX,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x0000_0001_0000_0001,
        1,
    ];
    let mut starts = word;
    for step in 0..order {
        starts &= starts >> (1 << step);
    }
    starts &= STARTS[order];
    (starts != 0).then(|| starts.trailing_zeros())
}

/// Returns the bits of a run.
#[inline]
fn bits(first: u32, order: usize) -> u64 {
    (u64::MAX >> (64 - (1u32 << order))) << first
}

impl PageSpan {
    pub(crate) fn new(base: NonNull<u8>) -> PageSpan {
        PageSpan {
            base,
            free: [u64::MAX; WORDS],
            dirty: [0; WORDS],
            free_units: UNITS,
            units: UNITS,
        }
    }

    /// Makes the span at a multiple of [`SPAN`] of which only the addresses in `range` exist.
    pub(crate) fn part(base: NonNull<u8>, range: Range<usize>) -> PageSpan {
        let mut span =
            PageSpan { free: [0; WORDS], free_units: 0, units: 0, ..PageSpan::new(base) };
        for unit in 0..UNITS {
            let at = base.addr().get() + unit * UNIT;
            if range.start <= at && at + UNIT <= range.end {
                span.free[unit / 64] |= 1 << (unit % 64);
                span.units += 1;
            }
        }
        span.free_units = span.units;
        span
    }

    /// Takes a run; returns its address and the number of its units that were dirty.
    pub(crate) fn take(&mut self, order: usize) -> Option<(NonNull<u8>, usize)> {
        if self.free_units < 1 << order {
            return None;
        }
        for word in 0..WORDS {
            let Some(first) = run_in(self.free[word], order) else { continue };
            let run = bits(first, order);
            self.free[word] &= !run;
            let dirty = (self.dirty[word] & run).count_ones() as usize;
            self.dirty[word] &= !run;
            self.free_units -= 1 << order;
            // SAFETY: the unit is within the span. (The beginning of a partial span may be outside
            // the region, the sum is not: hence `wrapping_add`.)
            let at = self.base.as_ptr().wrapping_add((word * 64 + first as usize) * UNIT);
            return NonNull::new(at).map(|at| (at, dirty));
        }
        None
    }

    pub(crate) fn give(&mut self, at: usize, order: usize) {
        let unit = (at - self.base.addr().get()) / UNIT;
        let run = bits((unit % 64) as u32, order);
        self.free[unit / 64] |= run;
        self.dirty[unit / 64] |= run;
        self.free_units += 1 << order;
    }

    /// Returns the number of dirty units.
    pub(crate) fn dirty_units(&self) -> usize {
        self.dirty.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Marks units as clean and calls `purge` with the byte range of each run of whole dirty pages.
    /// Returns the number of units.
    pub(crate) fn purge(&mut self, page: usize, mut purge: impl FnMut(Range<usize>)) -> usize {
        let mut purged = 0;
        let is = |bits: &[u64; WORDS], unit: usize| bits[unit / 64] >> (unit % 64) & 1 == 1;
        let mut unit = 0;
        while unit < UNITS {
            if !is(&self.dirty, unit) {
                unit += 1;
                continue;
            }
            let start = unit;
            while unit < UNITS && is(&self.dirty, unit) {
                unit += 1;
            }
            let whole = (start * UNIT).next_multiple_of(page)..unit * UNIT / page * page;
            if whole.is_empty() {
                continue;
            }
            for done in whole.start / UNIT..whole.end / UNIT {
                self.dirty[done / 64] &= !(1 << (done % 64));
            }
            purged += whole.len() / UNIT;
            purge(whole);
        }
        purged
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn naive(word: u64, order: usize) -> Option<u32> {
        let len = 1u32 << order;
        (0..64).step_by(len as usize).find(|at| (0..len).all(|bit| word >> (at + bit) & 1 == 1))
    }

    #[test]
    fn runs_are_found_as_by_looking_at_each() {
        let mut word = 0x9E37_79B9_7F4A_7C15u64;
        for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            let sparse = if round % 2 == 0 {
                word
            } else {
                word | word.rotate_left(7) | word.rotate_left(23)
            };
            for order in 0..ORDERS {
                assert_eq!(run_in(sparse, order), naive(sparse, order), "{sparse:x} {order}");
            }
        }
        assert_eq!((run_in(u64::MAX, 6), run_in(0, 0)), (Some(0), None));
    }
}
