//! Escaping of text in HTML.

use std::fmt::{self, Display, Formatter, Write};

/// Text that is escaped for elements and quoted attributes.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // HTML cannot represent other control characters.
                char if char.is_control() && char != '\n' && char != '\t' => {
                    f.write_char('\u{fffd}')?
                }
                char => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_an_element_or_an_attribute() {
        assert_eq!(
            Escaped("<a href=\"x\" 'y'>&amp;\0</a>").to_string(),
            "&lt;a href=&quot;x&quot; &#39;y&#39;&gt;&amp;amp;\u{fffd}&lt;/a&gt;"
        );
        assert_eq!(Escaped("≥ 0.5, in µs\n").to_string(), "≥ 0.5, in µs\n");
    }
}
