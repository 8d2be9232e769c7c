//! Bin names: sizes as floating-point numbers of five bits of exponent and three of mantissa.

pub(super) const MANTISSA_BITS: u32 = 3;
pub(super) const MANTISSA_MASK: u32 = (1 << MANTISSA_BITS) - 1;
/// The size of the largest bin: 15 · 2^28 bytes.
pub(super) const MAX_BIN_SIZE: u64 = 15 << 28;

/// Returns the largest bin whose size is at most `size`.
#[inline]
pub(super) fn bin_floor(size: u32) -> u8 {
    if size <= MANTISSA_MASK {
        return size as u8;
    }
    let shift = 31 - size.leading_zeros() - MANTISSA_BITS;
    (((shift + 1) << MANTISSA_BITS) + ((size >> shift) & MANTISSA_MASK)) as u8
}

/// Returns the smallest bin whose size is at least `size`.
#[inline]
pub(super) fn bin_ceil(size: u32) -> u8 {
    if size <= MANTISSA_MASK {
        return size as u8;
    }
    let shift = 31 - size.leading_zeros() - MANTISSA_BITS;
    let inexact = size & ((1 << shift) - 1) != 0;
    // A mantissa of eight carries into the exponent, as intended.
    (((shift + 1) << MANTISSA_BITS) + ((size >> shift) & MANTISSA_MASK) + u32::from(inexact)) as u8
}

/// Returns the size of bin `bin`.
#[inline]
pub(super) fn bin_size(bin: u8) -> u32 {
    let (exponent, mantissa) = (u32::from(bin) >> MANTISSA_BITS, u32::from(bin) & MANTISSA_MASK);
    if exponent == 0 { mantissa } else { (mantissa | 1 << MANTISSA_BITS) << (exponent - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_stand_for_eight_sizes_in_each_power_of_two() {
        for bin in 0..239 {
            let (size, next) = (bin_size(bin), bin_size(bin + 1));
            assert_eq!((bin_floor(size), bin_ceil(size)), (bin, bin));
            assert_eq!(bin_floor(next - 1), bin);
            assert!(size < 16 || next - size == 1 << (28 - size.leading_zeros()), "{size} {next}");
        }
        assert_eq!(u64::from(bin_size(bin_floor(u32::MAX))), MAX_BIN_SIZE);
    }
}
