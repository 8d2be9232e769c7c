//! *Escape*: text from outside, made safe to print.
//!
//! File names, arguments and the content of files may hold control characters. A terminal obeys
//! them: they move the cursor, overwrite earlier lines, or change its title. All text that the
//! command prints passes [`Escaped`], which writes such a character as Rust does: `\u{1b}`.

use std::fmt::{self, Write};
use std::path::Path;

/// Whether a terminal may obey `c` instead of showing it, or show other characters in another
/// order.
fn is_unsafe(c: char) -> bool {
    // The second range: marks that change the direction of writing.
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A writer that escapes control characters, except line feeds.
pub struct Escaped<W>(pub W);

impl<W: Write> Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(|c| c != '\n' && is_unsafe(c)) {
            self.0.write_str(&rest[..at])?;
            let mut chars = rest[at..].chars();
            // `find` returned its position.
            let Some(c) = chars.next() else { break };
            write!(self.0, "{}", c.escape_default())?;
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Formats a value with its control characters escaped, except line feeds.
pub fn escaped(value: impl fmt::Display) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(Escaped(&mut text), "{value}");
    text
}

/// Formats a file name on one line: line feeds are escaped too. Bytes that are not Unicode become
/// U+FFFD.
pub fn shown(path: &Path) -> impl fmt::Display {
    struct Shown<'a>(&'a Path);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&escaped(self.0.display()).replace('\n', "\\n"))
        }
    }
    Shown(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_get_nothing_to_obey() {
        let text = "a\x1b[31m\u{9b}2J\rb\x07\u{7f}\u{202e}\tc\nd é 日本";
        let safe = escaped(text);
        assert_eq!(safe, "a\\u{1b}[31m\\u{9b}2J\\rb\\u{7}\\u{7f}\\u{202e}\\tc\nd é 日本");
        assert_eq!(escaped(&safe), safe);
        assert_eq!(shown(Path::new("a\nb\x1b")).to_string(), "a\\nb\\u{1b}");
    }
}
