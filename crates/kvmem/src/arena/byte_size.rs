//! *Byte size*: a number of bytes as people write it.
//!
//! `8gb`, `1.5 GiB`, `512M`, `1048576`: a decimal number, then a unit or none. Units are powers of 1024 whether or not
//! they are spelt with an `i`, as in the settings this understands. The reckoning is exact; a fraction of a byte is dropped.

use thiserror::Error;

/// Why a text is no size.
///
/// ```
/// use kvmem::arena::{ArenaSettings, SettingError, SizeFault};
///
/// let variable = |name: &str| (name == "KVMEM_ARENA_POOL_SIZE").then(|| "0GB".into());
/// let Err(SettingError::Size { fault, .. }) = ArenaSettings::from_lookup(variable) else { panic!("it is wrong") };
/// assert_eq!(fault, SizeFault::Zero);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeFault {
    /// It does not begin with a decimal number.
    #[error("it does not begin with a number")]
    NoNumber,
    /// What follows the number is no unit.
    #[error("the unit {unit:?} is not known")]
    Unit {
        /// What stands there.
        unit: String,
    },
    /// It comes to less than one byte.
    #[error("it comes to 0 bytes")]
    Zero,
    /// It is more than this machine can address.
    #[error("it is more than {limit} bytes")]
    TooLarge {
        /// The most that can be, in bytes.
        limit: usize,
    },
}

/// The most bytes that one object can have.
const LIMIT: usize = isize::MAX as usize;

/// Reads a size ≥ 1.
pub(crate) fn parse(text: &str) -> Result<usize, SizeFault> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("infinite") {
        return Err(SizeFault::TooLarge { limit: LIMIT });
    }
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(SizeFault::NoNumber);
    }
    let unit = unit_len(unit.trim_start())?;
    let too_large = SizeFault::TooLarge { limit: LIMIT };
    let whole = digits(whole).ok_or(too_large.clone())?;
    let bytes = whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(fraction_of(fraction, unit)));
    match bytes {
        Some(0) => Err(SizeFault::Zero),
        Some(bytes) => usize::try_from(bytes).ok().filter(|bytes| *bytes <= LIMIT).ok_or(too_large),
        None => Err(too_large),
    }
}

fn unit_len(unit: &str) -> Result<u128, SizeFault> {
    let power = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(SizeFault::Unit { unit: unit.to_owned() }),
    };
    Ok(1 << (10 * power))
}

fn digits(text: &str) -> Option<u128> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

/// `0.<digits> × unit`, rounded down.
fn fraction_of(digits: &str, unit: u128) -> u128 {
    // Written out, 1/2^40 has 40 digits, so digits far down may still decide. From the last to the first: what is
    // carried is less than the unit, and floors nest: ⌊(d·u + x) / 10⌋ = ⌊(d·u + ⌊x⌋) / 10⌋.
    digits.bytes().rev().fold(0, |carried, digit| (u128::from(digit - b'0') * unit + carried) / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        let sizes = [
            ("1", 1),
            ("1048576", 1 << 20),
            (" 64 ", 64),
            ("64B", 64),
            ("2k", 2048),
            ("8gb", 8 << 30),
            ("8 GB", 8 << 30),
            ("8GiB", 8 << 30),
            ("1.5G", 3 << 29),
            (".5m", 1 << 19),
            ("2.T", 2 << 40),
            ("0.1k", 102),
            ("1.9", 1),
            ("0.0009765625k", 1),
            ("0.00000000000090949470177292823791503906250t", 1),
            ("9223372036854775807", isize::MAX as usize),
            ("0000000000000000000000000000000000000000000000000000001", 1),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn texts_that_are_no_size() {
        for text in ["", " ", "gb", "-1", "+1", ".", "1..2", "1.2.3", ".gb", "x12", "∞"] {
            assert_eq!(parse(text), Err(SizeFault::NoNumber), "{text:?}");
        }
        for (text, unit) in
            [("8 gigs", "gigs"), ("1e9", "e9"), ("1gb2", "gb2"), ("1 g b", "g b"), ("8ｇ", "ｇ")]
        {
            assert_eq!(parse(text), Err(SizeFault::Unit { unit: unit.to_owned() }), "{text:?}");
        }
        for text in ["0", "0.0gb", "0.4", "0.00000000000090949470177292823791503906249t"] {
            assert_eq!(parse(text), Err(SizeFault::Zero), "{text:?}");
        }
        let huge = "9".repeat(200);
        for text in
            ["infinite", "9223372036854775808", "8388608T", "340282366920938463463374607431768211455T", &huge]
        {
            assert_eq!(parse(text), Err(SizeFault::TooLarge { limit: isize::MAX as usize }), "{text:?}");
        }
    }
}
