//! *Bin sizes*: which sizes share a bin.
//!
//! Every octave of sizes is divided into 64 bins; each size below 64 has its own bin:
//!
//! ```text
//! size  0 1 2 … 63 | 64 65 … 127 | 128‥129 130‥131 … | … | 2^62‥ …
//! bin   0 1 2 … 63 | 64 65 … 127 | 128     129     … | … |
//!       octave 0     octave 1      octave 2                octave 57
//! ```
//!
//! A bin is at most 1/64 of its sizes wide, and bins below 128 are exact.

const MANTISSA_BITS: u32 = 6;
/// Bins of each octave.
pub(super) const PER_OCTAVE: u32 = 1 << MANTISSA_BITS;
/// More than exist, so no index needs a check.
pub(super) const OCTAVES: usize = 64;
/// Number of bins.
pub(super) const BINS: usize = OCTAVES * PER_OCTAVE as usize;
/// Bins below this are one size wide.
pub(super) const EXACT: u32 = 2 * PER_OCTAVE;

/// Returns the bin that contains `size` (the floor bin).
#[inline]
pub(crate) fn bin_floor(size: u64) -> u32 {
    // The size is shifted down to at most seven bits, and to exactly seven from octave 1 up: its
    // first bit adds the octave that the shift does not count. Octave 0 is not shifted either.
    let shift = (size | u64::from(PER_OCTAVE)).ilog2() - MANTISSA_BITS;
    (shift << MANTISSA_BITS) + (size >> shift) as u32
}

/// Returns the octave of a bin, and its number within the octave.
#[inline]
pub(super) fn octave_of(bin: u32) -> (usize, u32) {
    ((bin >> MANTISSA_BITS) as usize % OCTAVES, bin & (PER_OCTAVE - 1))
}

/// Returns the bin of this number within an octave.
#[inline]
pub(super) fn bin_in(octave: u32, mantissa: u32) -> u32 {
    octave << MANTISSA_BITS | mantissa
}

/// Returns the least size in `bin`.
pub(crate) fn bin_size_min(bin: u32) -> u64 {
    let (octave, mantissa) = (bin >> MANTISSA_BITS, u64::from(bin & (PER_OCTAVE - 1)));
    if octave == 0 { mantissa } else { (mantissa + u64::from(PER_OCTAVE)) << (octave - 1) }
}

/// Returns the greatest size in `bin`.
pub(crate) fn bin_size_max(bin: u32) -> u64 {
    bin_size_min(bin) + ((1 << bin_width_log2(bin)) - 1)
}

/// Returns the binary logarithm of the width of `bin`.
pub(super) fn bin_width_log2(bin: u32) -> u32 {
    (bin >> MANTISSA_BITS).saturating_sub(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bins_tile_all_sizes() {
        for bin in 0..=bin_floor(u64::MAX) {
            let (min, max) = (bin_size_min(bin), bin_size_max(bin));
            assert_eq!((bin_floor(min), bin_floor(max)), (bin, bin));
            assert!(max - min <= min / 64, "bin {bin} is wider than 1/64");
            if max < u64::MAX {
                assert_eq!(bin_size_min(bin + 1), max + 1);
            }
        }
        assert!(bin_floor(u64::MAX) < BINS as u32);
    }
}
