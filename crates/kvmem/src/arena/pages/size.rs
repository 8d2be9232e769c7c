//! *Page size*: the kinds of pages, and how large they are.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sys;

/// A kind of page, in the order of the usual ladder: the largest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// 1 GiB, from the hugetlb pool that the administrator reserved.
    #[serde(rename = "1G")]
    Huge1G,
    /// 2 MiB, from the hugetlb pool that the administrator reserved.
    #[serde(rename = "2M")]
    Huge2M,
    /// Transparent hugepages: ordinary memory in which the kernel uses hugepages where it can,
    /// without a promise.
    #[serde(rename = "thp")]
    Thp,
    /// Base pages, 4 KiB on most machines.
    #[serde(rename = "4k")]
    Base,
}

impl PageSize {
    /// Returns its size in bytes: for [`Thp`](PageSize::Thp) the size of the hugepages that the
    /// kernel tries to use, for [`Base`](PageSize::Base) the machine's page size.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            PageSize::Huge1G => 1 << 30,
            PageSize::Huge2M => 2 << 20,
            PageSize::Thp => thp_size(),
            PageSize::Base => sys::page_size(),
        }
    }

    /// Returns whether its pages come from a hugetlb pool, which promises them when they are
    /// mapped.
    #[must_use]
    pub fn is_pooled(self) -> bool {
        matches!(self, PageSize::Huge1G | PageSize::Huge2M)
    }

    /// Returns the kind of hugetlb page with this size.
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

/// Returns the kernel's size of a transparent hugepage: 2 MiB where base pages are 4 KiB, more on
/// some other machines.
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

    /// Parses `1G`, `2M`, `thp` or `4k`, in any case; `base` is `4k`.
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
    "`{requested}` is not a kind of page: use 1G, 2M, thp or 4k, or several separated by commas"
)]
pub struct ParsePagesError {
    /// The text.
    pub requested: String,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn page_kinds_parse_what_they_display() {
        for page in [PageSize::Huge1G, PageSize::Huge2M, PageSize::Thp, PageSize::Base] {
            assert_eq!(page.to_string().parse(), Ok(page));
            let json = serde_json::to_string(&page).expect("plain data");
            assert_eq!(json, format!("\"{page}\""));
            assert_eq!(serde_json::from_str::<PageSize>(&json).expect("valid JSON"), page);
            assert!(page.bytes().is_power_of_two());
        }
    }
}
