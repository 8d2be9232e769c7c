//! Colours as roles.
//!
//! The plotting library supports only numeric colours, but the colours of a page must follow the
//! reader's choice of light or dark. Each role is therefore drawn in a number that no design would
//! use, `#0000NN`. In the finished drawing a variable of the page's style, `var(--name)`, replaces
//! that number.

use plotters::style::{RGBAColor, RGBColor};

/// The number of series with different colours; further series repeat them.
pub const SERIES: usize = 7;

/// The role of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Text and marks.
    Text,
    /// Axes, and text beside them.
    Dim,
    /// Grid lines.
    Grid,
    /// One of several series.
    Series(usize),
}

impl Ink {
    const ALL: usize = 3 + SERIES;

    fn number(self) -> u8 {
        match self {
            Ink::Text => 1,
            Ink::Dim => 2,
            Ink::Grid => 3,
            Ink::Series(number) => 4 + (number % SERIES) as u8,
        }
    }

    /// Returns the name of the variable in the page's style.
    #[must_use]
    pub fn variable(self) -> String {
        match self {
            Ink::Text => "--text".to_owned(),
            Ink::Dim => "--dim".to_owned(),
            Ink::Grid => "--grid".to_owned(),
            Ink::Series(number) => format!("--s{}", number % SERIES),
        }
    }

    /// Returns the number used while drawing, with an opacity from 0 to 1.
    pub(crate) fn colour(self, opacity: f64) -> RGBAColor {
        RGBAColor(0, 0, self.number(), opacity)
    }

    /// Returns the opaque number used while drawing.
    pub(crate) fn full(self) -> RGBColor {
        RGBColor(0, 0, self.number())
    }
}

/// Replaces the numbers by variables. A number is the whole value of an attribute. Text contains no
/// quotes, because they are escaped.
pub(crate) fn replace_numbers(svg: &str) -> String {
    let inks = [Ink::Text, Ink::Dim, Ink::Grid].into_iter().chain((0..SERIES).map(Ink::Series));
    debug_assert_eq!(inks.clone().count(), Ink::ALL, "every role is replaced");
    inks.fold(svg.to_owned(), |svg, ink| {
        svg.replace(
            &format!("\"#0000{:02X}\"", ink.number()),
            &format!("\"var({})\"", ink.variable()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_replace_numbers() {
        let drawn = r##"<rect fill="#000005"/><line stroke="#000001"/>
<text>#000001 &quot;#000001&quot;</text>"##;
        let dressed = r##"<rect fill="var(--s1)"/><line stroke="var(--text)"/>
<text>#000001 &quot;#000001&quot;</text>"##;
        assert_eq!(replace_numbers(drawn), dressed);
        assert_eq!(Ink::Series(SERIES + 2).variable(), "--s2");
    }
}
