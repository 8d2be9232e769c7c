//! *Bitmap*: which bins are non-empty, in two levels.
//!
//! Bit *o* of `coarse` is set iff octave *o* has a non-empty bin, bit *m* of `fine[o]` iff bin
//! 64·*o* + *m* is non-empty. Two count-zeros find the next non-empty bin.

use std::hint::select_unpredictable;

use super::bin_sizes::{OCTAVES, bin_in, octave_of};

/// A bit for each bin, and one for each octave.
pub(super) struct BinBitmap {
    fine: [u64; OCTAVES],
    coarse: u64,
}

impl BinBitmap {
    pub(super) fn new() -> Self {
        BinBitmap { fine: [0; OCTAVES], coarse: 0 }
    }

    /// Marks a bin as non-empty.
    #[inline(always)]
    pub(super) fn mark(&mut self, bin: u32) {
        let (octave, mantissa) = octave_of(bin);
        self.fine[octave] |= 1 << mantissa;
        self.coarse |= 1 << octave;
    }

    /// Marks a bin as empty.
    pub(super) fn unmark(&mut self, bin: u32) {
        self.unmark_if(true, bin);
    }

    /// Marks a bin, which is marked, as empty if it is. Without a branch.
    #[inline(always)]
    pub(super) fn unmark_if(&mut self, emptied: bool, bin: u32) {
        let (octave, mantissa) = octave_of(bin);
        let rest = self.fine[octave] & !(u64::from(emptied) << mantissa);
        self.fine[octave] = rest;
        self.coarse &= !(u64::from(rest == 0) << octave);
    }

    /// Returns the first non-empty bin at or above `bin`.
    #[inline]
    pub(super) fn first_from(&self, bin: u32) -> Option<u32> {
        let (octave, mantissa) = octave_of(bin);
        let here = self.fine[octave] & (!0 << mantissa);
        // Octave 63 is always empty, so the shift amount stays below 64 where it matters.
        let above = self.coarse & (!1 << octave);
        if here | above == 0 {
            return None;
        }
        // Without a branch: which of the two it is, is unpredictable.
        let next = above.trailing_zeros() as usize % OCTAVES;
        let (octave, word) =
            select_unpredictable(here != 0, (octave, here), (next, self.fine[next]));
        Some(bin_in(octave as u32, word.trailing_zeros()))
    }

    /// Returns the last non-empty bin below `bin`.
    pub(super) fn last_below(&self, bin: u32) -> Option<u32> {
        let (octave, mantissa) = octave_of(bin);
        let here = self.fine[octave] & !(!0 << mantissa);
        let below = self.coarse & !(!0 << octave);
        let octave = if here != 0 { octave } else { below.checked_ilog2()? as usize };
        let word = if here != 0 { here } else { self.fine[octave] };
        Some(bin_in(octave as u32, word.ilog2()))
    }

    /// Returns the last non-empty bin.
    pub(super) fn last(&self) -> Option<u32> {
        let octave = self.coarse.checked_ilog2()?;
        Some(bin_in(octave, self.fine[octave as usize].ilog2()))
    }

    /// Returns whether the octave of a bin has no bit.
    pub(super) fn is_clear(&self, bin: u32) -> bool {
        let (octave, _) = octave_of(bin);
        self.fine[octave] == 0 && self.coarse >> octave & 1 == 0
    }

    /// Checks the bits of a bin, which is non-empty if `filled`.
    pub(super) fn check(&self, bin: u32, filled: bool) -> Result<(), String> {
        let (octave, mantissa) = octave_of(bin);
        let marked = self.fine[octave] >> mantissa & 1 == 1;
        if filled != marked {
            return Err(format!("bin {bin}: list filled {filled}, bit {marked}"));
        }
        if (self.fine[octave] != 0) != (self.coarse >> octave & 1 == 1) {
            return Err(format!("octave {octave}: coarse bit differs from the fine bits"));
        }
        Ok(())
    }
}
