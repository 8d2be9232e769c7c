//! *Human bytes*: a number of bytes for readers, in the largest unit that fits.

use std::fmt;

/// A number of bytes, displayed in the largest unit that leaves at least 1.
pub(crate) struct HumanBytes(pub(crate) u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let unit = (self.0.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
        let text = if self.0.is_multiple_of(1 << (10 * unit)) {
            format!("{} {}", self.0 >> (10 * unit), UNITS[unit])
        } else {
            format!("{:.2} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit])
        };
        f.pad(&text)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_display_in_the_largest_unit() {
        let shown = |bytes| HumanBytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(4096), "4 KiB");
        assert_eq!(shown(3 << 29), "1.50 GiB");
        assert_eq!(shown(1 << 40), "1 TiB");
        assert_eq!(shown(u64::MAX), "16384.00 PiB");
    }
}
