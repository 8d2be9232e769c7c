//! *Ink*: colours as roles.
//!
//! The library that draws knows numbers only, and a page that follows the reader's choice of light
//! or dark cannot have them. So each role is drawn in a number that nobody would choose, `#0000NN`,
//! and in the finished drawing that number gives way to a variable of the page's style,
//! `var(--name)`.

use plotters::style::{RGBAColor, RGBColor};

/// How many series can be told apart by colour; further ones begin anew.
pub const SERIES: usize = 7;

/// What something is drawn in.
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

    /// What it is called in the page's style.
    pub fn variable(self) -> String {
        match self {
            Ink::Text => "--text".to_owned(),
            Ink::Dim => "--dim".to_owned(),
            Ink::Grid => "--grid".to_owned(),
            Ink::Series(number) => format!("--s{}", number % SERIES),
        }
    }

    /// Its number, while drawing; `opacity` from 0 to 1.
    pub(crate) fn colour(self, opacity: f64) -> RGBAColor {
        RGBAColor(0, 0, self.number(), opacity)
    }

    /// Its number, while drawing.
    pub(crate) fn full(self) -> RGBColor {
        RGBColor(0, 0, self.number())
    }
}

/// Puts variables where the numbers are. They are the whole of an attribute; in text there are no
/// quotes, for they are escaped.
pub(crate) fn dress(svg: &str) -> String {
    let inks = [Ink::Text, Ink::Dim, Ink::Grid].into_iter().chain((0..SERIES).map(Ink::Series));
    debug_assert_eq!(inks.clone().count(), Ink::ALL, "each of them");
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
    fn numbers_give_way_to_variables() {
        let drawn = r##"<rect fill="#000005"/><line stroke="#000001"/><text>#000001 \
            &quot;#000001&quot;</text>"##;
        let dressed = r##"<rect fill="var(--s1)"/><line stroke="var(--text)"/><text>#000001 \
            &quot;#000001&quot;</text>"##;
        assert_eq!(dress(drawn), dressed);
        assert_eq!(Ink::Series(SERIES + 2).variable(), "--s2");
    }
}
