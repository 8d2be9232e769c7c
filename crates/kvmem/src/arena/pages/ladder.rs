//! *Ladder*: the kinds of pages to try, first choice first.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::size::{PageSize, ParsePagesError};

/// The kinds of pages to try, first choice first.
///
/// The first rung takes as much of a region as possible, the second as much of the rest as
/// possible, and so on. A strict ladder has its first rung only: if that cannot take everything,
/// mapping fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ladder {
    /// The rungs, tried in this order.
    pub rungs: Vec<PageSize>,
    /// Whether mapping fails instead of going down to the next rung.
    pub strict: bool,
}

impl Ladder {
    /// Makes a ladder of these rungs, not strict.
    #[must_use]
    pub fn new(rungs: impl Into<Vec<PageSize>>) -> Ladder {
        Ladder { rungs: rungs.into(), strict: false }
    }

    /// Makes a strict ladder of one kind of page.
    #[must_use]
    pub fn only(page: PageSize) -> Ladder {
        Ladder { rungs: vec![page], strict: true }
    }

    /// Returns the same rungs, strict or not.
    #[must_use]
    pub fn strict(self, strict: bool) -> Ladder {
        Ladder { strict, ..self }
    }

    /// Returns the rungs that mapping may use.
    pub(crate) fn usable(&self) -> &[PageSize] {
        let count = if self.strict { 1.min(self.rungs.len()) } else { self.rungs.len() };
        &self.rungs[..count]
    }
}

impl Default for Ladder {
    /// Returns 2 MiB, then THP, then base pages. Name 1 GiB explicitly: few machines have a pool of
    /// such pages by chance.
    fn default() -> Ladder {
        Ladder::new([PageSize::Huge2M, PageSize::Thp, PageSize::Base])
    }
}

impl From<PageSize> for Ladder {
    /// Makes a ladder of one rung, not strict. Without a second rung this differs little from a
    /// strict one.
    fn from(page: PageSize) -> Ladder {
        Ladder::new([page])
    }
}

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, page) in self.rungs.iter().enumerate() {
            write!(f, "{}{page}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Ladder {
    type Err = ParsePagesError;

    /// Parses kinds of pages separated by commas, such as `2M,thp,4k`.
    fn from_str(text: &str) -> Result<Ladder, ParsePagesError> {
        text.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().map(Ladder::new)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ladders_parse_what_they_display() {
        assert_eq!("2m,THP, base".parse(), Ok(Ladder::default()));
        assert_eq!(Ladder::default().to_string(), "2M,thp,4k");
        assert_eq!("2M,3M".parse::<Ladder>(), Err(ParsePagesError { requested: "3M".to_owned() }));
        assert!("".parse::<Ladder>().is_err());
    }

    #[test]
    fn a_strict_ladder_has_one_rung() {
        assert_eq!(Ladder::default().strict(true).usable(), [PageSize::Huge2M]);
        assert_eq!(Ladder::default().usable().len(), 3);
        assert!(Ladder::new([]).strict(true).usable().is_empty());
    }
}
