//! *Byte size*: a number of bytes as people write it, and its only parser.
//!
//! The documentation of [`ByteSize`] has the rules, with examples. The arithmetic is exact: no
//! number goes through floating point.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

#[doc = include_str!("../../docs/sizes.md")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text that is not a size.
///
/// ```
/// use kvmem::arena::{ByteSize, SizeFault};
///
/// let error = "-1GiB".parse::<ByteSize>().unwrap_err();
/// assert_eq!((&*error.text, &error.fault), ("-1GiB", &SizeFault::Negative));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not a size: {fault}; give a number of bytes, or one with KiB, MiB, GiB, TiB \
     (powers of 1024, as K, M, G, T) or KB, MB, GB, TB (powers of 1000), such as 64GiB"
)]
pub struct SizeError {
    /// The text.
    pub text: Box<str>,
    /// The reason.
    pub fault: SizeFault,
}

/// The reason why a text is not a size.
///
/// ```
/// use kvmem::arena::{ArenaSettings, SettingError, SizeFault};
///
/// let variable = |name: &str| (name == "KVMEM_ARENA_POOL_SIZE").then(|| "0GB".into());
/// let error = ArenaSettings::from_lookup(variable).unwrap_err();
/// assert!(matches!(error, SettingError::Size { fault: SizeFault::Zero, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeFault {
    /// The text is empty, or has only spaces.
    #[error("it is empty")]
    Empty,
    /// The text begins with a minus sign.
    #[error("it is negative")]
    Negative,
    /// The text does not begin with a decimal number.
    #[error("it does not begin with a number")]
    NoNumber,
    /// The text after the number is not a known unit.
    #[error("the unit {unit:?} is not known")]
    Unit {
        /// The text after the number.
        unit: String,
    },
    /// The size is less than one byte.
    #[error("it comes to 0 bytes")]
    Zero,
    /// The size is more than this machine can address.
    #[error("it is more than {limit} bytes")]
    TooLarge {
        /// The largest size, in bytes.
        limit: usize,
    },
}

/// The size of the largest object, in bytes.
const LIMIT: usize = isize::MAX as usize;

/// The meaning of `KB` and similar units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// Powers of 1000, as in SI.
    Standard,
    /// Powers of 1024, as in Mooncake.
    PowersOf1024,
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        match parse(text, Units::Standard) {
            Ok(bytes) => Ok(ByteSize(bytes as u64)),
            Err(fault) => Err(SizeError { text: text.into(), fault }),
        }
    }
}

impl fmt::Display for ByteSize {
    /// Uses the largest unit of 1024 that gives a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = if self.0 == 0 { 0 } else { self.0.trailing_zeros() / 10 };
        write!(f, "{}{}", self.0 >> (10 * power), UNITS[power as usize])
    }
}

/// Parses a size ≥ 1.
pub(crate) fn parse(text: &str, units: Units) -> Result<usize, SizeFault> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeFault::Empty);
    }
    if text.starts_with('-') {
        return Err(SizeFault::Negative);
    }
    let too_large = SizeFault::TooLarge { limit: LIMIT };
    if units == Units::PowersOf1024 && text.eq_ignore_ascii_case("infinite") {
        return Err(too_large);
    }
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(SizeFault::NoNumber);
    }
    let unit = unit_len(unit.trim_start(), units)?;
    let whole = digits(whole).ok_or(too_large.clone())?;
    let bytes =
        whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(fraction_of(fraction, unit)));
    match bytes {
        Some(0) => Err(SizeFault::Zero),
        Some(bytes) => usize::try_from(bytes).ok().filter(|bytes| *bytes <= LIMIT).ok_or(too_large),
        None => Err(too_large),
    }
}

/// Returns the bytes of a unit.
fn unit_len(unit: &str, units: Units) -> Result<u128, SizeFault> {
    const POWERS: &str = "kmgtpe";
    let lower = unit.to_ascii_lowercase();
    let mut letters = lower.chars();
    let power = match letters.next() {
        None => return Ok(1),
        Some('b') if letters.as_str().is_empty() => return Ok(1),
        Some(letter) => POWERS.find(letter).map(|at| at as u32 + 1),
    };
    let base: Option<u128> = match (letters.as_str(), units) {
        ("" | "i" | "ib", _) | ("b", Units::PowersOf1024) => Some(1024),
        ("b", Units::Standard) => Some(1000),
        _ => None,
    };
    match (base, power) {
        (Some(base), Some(power)) => Ok(base.pow(power)),
        _ => Err(SizeFault::Unit { unit: unit.to_owned() }),
    }
}

fn digits(text: &str) -> Option<u128> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

/// Returns `0.<digits> × unit`, rounded down.
fn fraction_of(digits: &str, unit: u128) -> u128 {
    // Written out, 1/2^60 has 60 digits, so digits far down can still decide. The loop goes from
    // the last digit to the first. The carried value is less than the unit, and floors nest: ⌊(d·u
    // + x) / 10⌋ = ⌊(d·u + ⌊x⌋) / 10⌋.
    digits.bytes().rev().fold(0, |carried, digit| (u128::from(digit - b'0') * unit + carried) / 10)
}

/// A number of bytes, displayed in the largest unit that leaves at least 1.
pub(crate) struct HumanBytes(pub(crate) u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = self.0.max(1).ilog2() as usize / 10;
        let text = if self.0.is_multiple_of(1 << (10 * unit)) {
            format!("{} {}", self.0 >> (10 * unit), UNITS[unit])
        } else {
            format!("{:.1} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit])
        };
        f.pad(&text)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mooncake_has_powers_of_1024_alone() {
        let mooncake = |text| parse(text, Units::PowersOf1024);
        for text in ["8gb", "8 GB", "8g", "8GiB", "8Gi"] {
            assert_eq!(mooncake(text), Ok(8 << 30), "{text:?}");
        }
        assert_eq!(mooncake("1.5MB"), Ok(3 << 19));
        assert_eq!(mooncake("infinite"), Err(SizeFault::TooLarge { limit: isize::MAX as usize }));
    }

    #[test]
    fn digits_far_down_decide() {
        let standard = |text| parse(text, Units::Standard);
        assert_eq!(standard("0.00000000000090949470177292823791503906250T"), Ok(1));
        assert_eq!(standard("0.00000000000090949470177292823791503906249T"), Err(SizeFault::Zero));
        let huge = "9".repeat(200);
        assert_eq!(standard(&huge), Err(SizeFault::TooLarge { limit: isize::MAX as usize }));
        assert_eq!(standard(&format!("1.{huge}K")), Ok(2047));
    }

    #[test]
    fn byte_counts_display_in_the_largest_unit() {
        let shown = |bytes| HumanBytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(4096), "4 KiB");
        assert_eq!(shown((64 << 30) + (51 << 24)), "64.8 GiB");
        assert_eq!(shown(1 << 40), "1 TiB");
        assert_eq!((&*shown(1 << 63), &*shown(u64::MAX)), ("8 EiB", "16.0 EiB"));
    }
}
