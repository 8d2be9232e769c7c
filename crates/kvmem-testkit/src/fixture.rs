//! *Fixtures*: files that one version of a format has written, for the tests of all later ones.
//!
//! A fixture is text, and is small: bytes without a line are zeros.
//!
//! ```text
//! # Comments.
//! len 131072
//! 00000000 4b766d656d44736b02000000…   offset, and 32 bytes from there on
//! ```
//!
//! A test that names a fixture which is not there fails, and says how it is written. A fixture that
//! is there is never written again: it is what users have.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The variable that makes tests write the fixtures that are missing.
const WRITE: &str = "KVMEM_WRITE_FIXTURES";

/// Bytes of a line.
const LINE: usize = 32;

/// Returns the bytes of the fixture at `path`. If it is missing and `KVMEM_WRITE_FIXTURES` is set,
/// it becomes what `written` returns.
///
/// # Panics
/// The fixture is missing, or is no fixture.
#[must_use]
pub fn fixture(path: &Path, written: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let text = text_fixture(path, || to_text(&written()));
    from_text(&text).unwrap_or_else(|| panic!("{} is no fixture", path.display()))
}

/// Returns the text of the fixture at `path`, as [`fixture`] does.
///
/// # Panics
/// The fixture is missing.
#[must_use]
pub fn text_fixture(path: &Path, written: impl FnOnce() -> String) -> String {
    if !path.exists() && std::env::var_os(WRITE).is_some() {
        fs::write(path, written()).expect("the folder of fixtures can be written");
    }
    fs::read_to_string(path).unwrap_or_else(|error| {
        let path = path.display();
        panic!("{path}: {error}; run the test with {WRITE}=1, and commit the file")
    })
}

/// Returns bytes as the text of a fixture.
#[must_use]
pub fn to_text(bytes: &[u8]) -> String {
    let mut text = format!("len {}\n", bytes.len());
    for (at, line) in bytes.chunks(LINE).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            let _ = writeln!(text, "{:08x} {}", at * LINE, to_hex(line));
        }
    }
    text
}

/// Returns the bytes of a fixture's text; `None` if it is none.
#[must_use]
pub fn from_text(text: &str) -> Option<Vec<u8>> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut bytes = vec![0; lines.next()?.strip_prefix("len ")?.parse().ok()?];
    for line in lines {
        let (at, hex) = line.split_once(' ')?;
        let (at, some) = (usize::from_str_radix(at, 16).ok()?, from_hex(hex)?);
        bytes.get_mut(at..at.checked_add(some.len())?)?.copy_from_slice(&some);
    }
    Some(bytes)
}

/// Returns bytes as hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of hexadecimal digits; `None` if they are none.
#[must_use]
pub fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_the_bytes_of_which_it_was_made() {
        let mut bytes = vec![0; 1000];
        for at in [0, 31, 32, 500, 999] {
            bytes[at] = 1 + at as u8;
            let text = format!("# comment\n{}", to_text(&bytes));
            assert_eq!(from_text(&text).as_ref(), Some(&bytes));
        }
        assert_eq!(to_text(&bytes).lines().count(), 5);
        for text in ["", "len", "len x", "len 4\n0 0", "len 4\n0 0g", "len 4\n3 0001", "len 4\n0"] {
            assert_eq!(from_text(text), None, "{text:?}");
        }
        assert_eq!(from_text("len 4\n2 0001"), Some(vec![0, 0, 0, 1]));
    }
}
