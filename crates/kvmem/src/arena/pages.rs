//! *Pages*: their sizes, and the ladder of those to try.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sys;

/// A kind of page. The order is that of the usual ladder: the largest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// 1 GiB, from the pool that the administrator reserved.
    #[serde(rename = "1G")]
    Huge1G,
    /// 2 MiB, from such a pool.
    #[serde(rename = "2M")]
    Huge2M,
    /// Transparent hugepages: ordinary memory in which the kernel uses hugepages where it can.
    /// Nothing is promised.
    #[serde(rename = "thp")]
    Thp,
    /// Base pages, 4 KiB on most machines.
    #[serde(rename = "4k")]
    Base,
}

impl PageSize {
    /// Its size in bytes. Of [`Thp`](PageSize::Thp) that of the hugepage the kernel tries for, of
    /// [`Base`](PageSize::Base) that of the machine's page.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            PageSize::Huge1G => 1 << 30,
            PageSize::Huge2M => 2 << 20,
            PageSize::Thp => thp_size(),
            PageSize::Base => sys::page_size(),
        }
    }

    /// Whether its pages come from a pool, which promises them when they are mapped.
    #[must_use]
    pub fn is_pooled(self) -> bool {
        matches!(self, PageSize::Huge1G | PageSize::Huge2M)
    }

    /// The kind of pooled page with this size.
    pub(crate) fn pooled(bytes: u64) -> Option<PageSize> {
        [PageSize::Huge1G, PageSize::Huge2M].into_iter().find(|page| page.bytes() as u64 == bytes)
    }

    fn name(self) -> &'static str {
        match self {
            PageSize::Huge1G => "1G",
            PageSize::Huge2M => "2M",
            PageSize::Thp => "thp",
            PageSize::Base => "4k",
        }
    }
}

/// The kernel's size of a transparent hugepage: 2 MiB where base pages are 4 KiB, more on some
/// other machines.
fn thp_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let read = sys::read_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok();
        let size = read.and_then(|text| text.trim().parse::<usize>().ok());
        size.filter(|size| size.is_power_of_two() && *size >= sys::page_size()).unwrap_or(2 << 20)
    })
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PageSize {
    type Err = ParsePagesError;

    /// `1G`, `2M`, `thp` or `4k`, in any case; `base` is `4k`.
    fn from_str(text: &str) -> Result<PageSize, ParsePagesError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "1g" | "1gib" => Ok(PageSize::Huge1G),
            "2m" | "2mib" => Ok(PageSize::Huge2M),
            "thp" => Ok(PageSize::Thp),
            "4k" | "4kib" | "base" => Ok(PageSize::Base),
            _ => Err(ParsePagesError { requested: text.to_owned() }),
        }
    }
}

/// A text that names no kind of page.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{requested}` is no kind of page: say 1G, 2M, thp or 4k, or several with commas between them"
)]
pub struct ParsePagesError {
    /// The text.
    pub requested: String,
}

/// The kinds of pages to try, first choice first.
///
/// As much of a region as possible goes to the first rung, as much of the rest as possible to the
/// second, and so on. A strict ladder has its first rung only: where that cannot take everything,
/// mapping fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ladder {
    /// The rungs, tried in this order.
    pub rungs: Vec<PageSize>,
    /// Whether to fail instead of stepping down.
    pub strict: bool,
}

impl Ladder {
    /// A ladder of these rungs, not strict.
    pub fn new(rungs: impl Into<Vec<PageSize>>) -> Ladder {
        Ladder { rungs: rungs.into(), strict: false }
    }

    /// One kind of page and no other.
    #[must_use]
    pub fn only(page: PageSize) -> Ladder {
        Ladder { rungs: vec![page], strict: true }
    }

    /// The same rungs, strict or not.
    #[must_use]
    pub fn strict(self, strict: bool) -> Ladder {
        Ladder { strict, ..self }
    }

    /// The rungs that may be used at all.
    pub(crate) fn usable(&self) -> &[PageSize] {
        let count = if self.strict { 1.min(self.rungs.len()) } else { self.rungs.len() };
        &self.rungs[..count]
    }
}

impl Default for Ladder {
    /// 2 MiB, then THP, then base pages. 1 GiB is for those who ask: a pool of such pages is seldom
    /// there by chance.
    fn default() -> Ladder {
        Ladder::new([PageSize::Huge2M, PageSize::Thp, PageSize::Base])
    }
}

impl From<PageSize> for Ladder {
    /// A ladder of one rung, not strict: with nothing to step down to, that is much the same.
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

    /// Kinds of pages with commas between them, such as `2M,thp,4k`.
    fn from_str(text: &str) -> Result<Ladder, ParsePagesError> {
        text.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().map(Ladder::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_as_they_are_shown() {
        for page in [PageSize::Huge1G, PageSize::Huge2M, PageSize::Thp, PageSize::Base] {
            assert_eq!(page.to_string().parse(), Ok(page));
            let json = serde_json::to_string(&page).expect("plain data");
            assert_eq!(json, format!("\"{page}\""));
            assert_eq!(serde_json::from_str::<PageSize>(&json).expect("what was written"), page);
            assert!(page.bytes().is_power_of_two());
        }
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
