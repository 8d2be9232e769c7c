//! Sizes as text: the table that all language bindings are tested with, and round trips.

use kvmem::arena::{ByteSize, SizeFault};
use kvmem::pool::{PoolError, PoolSize};
use proptest::prelude::*;

const TABLE: &str = include_str!("../../data/sizes.tsv");

/// Returns the texts of the table with their expected results.
fn table() -> impl Iterator<Item = (&'static str, Result<u64, SizeFault>)> {
    let limit = isize::MAX as usize;
    TABLE.lines().filter(|line| !line.starts_with('#')).map(move |line| {
        let (text, found) = line.split_once('\t').expect("a text and what it is");
        let found = match found.split_once(' ').unwrap_or((found, "")) {
            ("empty", _) => Err(SizeFault::Empty),
            ("negative", _) => Err(SizeFault::Negative),
            ("number", _) => Err(SizeFault::NoNumber),
            ("unit", unit) => Err(SizeFault::Unit { unit: unit.to_owned() }),
            ("zero", _) => Err(SizeFault::Zero),
            ("large", _) => Err(SizeFault::TooLarge { limit }),
            (bytes, _) => Ok(bytes.parse().expect("a number of bytes")),
        };
        (text, found)
    })
}

#[test]
fn texts_parse_as_in_the_table() {
    for (text, expected) in table() {
        let found = text.parse::<ByteSize>();
        let message = found.as_ref().map_err(ToString::to_string).map(ToString::to_string);
        assert_eq!(found.map(|size| size.0).map_err(|error| error.fault), expected, "{text:?}");
        // A pool's size parses alike, with the same messages.
        match PoolSize::from(text).bytes() {
            Ok(bytes) => assert_eq!(Ok(bytes as u64), expected, "{text:?}"),
            Err(error) => {
                assert_eq!(Err(error.to_string()), message, "{text:?}");
                let PoolError::Size { fault, .. } = error else { panic!("{error:?}") };
                assert_eq!(Err(*fault), expected, "{text:?}");
            }
        }
    }
    assert!(table().count() > 90);
}

#[test]
fn errors_have_a_reason_and_a_remedy() {
    for (text, expected) in table().filter(|(_, expected)| expected.is_err()) {
        let message = text.parse::<ByteSize>().unwrap_err().to_string();
        let fault = expected.unwrap_err().to_string();
        for part in [&format!("{text:?}"), &fault, "such as 64GiB"] {
            assert!(message.contains(part), "{part} is missing in {message}");
        }
    }
}

proptest! {
    #[test]
    fn displayed_sizes_parse_to_the_same_number(bytes in sizes()) {
        let printed = ByteSize(bytes).to_string();
        prop_assert_eq!(printed.parse(), Ok(ByteSize(bytes)), "{}", printed);
        // Other notations parse to the same number.
        let (lower, upper) = (printed.to_lowercase(), printed.to_uppercase());
        for text in [lower, upper, printed.replace("iB", "i"), printed.replace("iB", "")] {
            prop_assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{}", text);
        }
        prop_assert_eq!(format!(" {bytes} b ").parse(), Ok(ByteSize(bytes)));
    }

    /// Compares with integer arithmetic in thousandths of a unit.
    #[test]
    fn fractions_are_exact(
        whole in 0u64..5000,
        thousandths in 0u64..1000,
        power in 0u32..5,
        decimal: bool,
    ) {
        let (base, end) = if decimal { (1000u128, "B") } else { (1024, "iB") };
        let unit = ["", "K", "M", "G", "T"][power as usize];
        let end = if power == 0 { "" } else { end };
        let bytes = (u128::from(whole) * 1000 + u128::from(thousandths)) * base.pow(power) / 1000;
        let text = format!("{whole}.{thousandths:03} {unit}{end}");
        match text.parse::<ByteSize>() {
            Ok(size) => prop_assert_eq!(u128::from(size.0), bytes, "{}", text),
            Err(error) => prop_assert_eq!((error.fault, bytes), (SizeFault::Zero, 0), "{}", text),
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,24}", digits in "[-+.0-9 ]{0,20}[kmgtpeKMGTPEiIbB ]{0,4}") {
        for text in [text, digits] {
            if let Ok(size) = text.parse::<ByteSize>() {
                prop_assert!((1..=isize::MAX as u64).contains(&size.0), "{:?}", text);
            }
        }
    }
}

/// Generates sizes of every magnitude, and near every unit.
fn sizes() -> impl Strategy<Value = u64> {
    let any = (0u32..63, any::<u64>())
        .prop_map(|(bits, number)| (number >> (63 - bits)).clamp(1, i64::MAX as u64));
    let near =
        (0u32..63, 0u64..5).prop_map(|(bits, off)| ((1u64 << bits) + off).saturating_sub(2).max(1));
    prop_oneof![any, near, Just(i64::MAX as u64)]
}
