//! *Receipt*: what was requested and what the kernel provided, range by range.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::builder::Backing;
use crate::arena::{ArenaError, Errno, Nodes, PageSize};

/// The composition of a region, as found when it was mapped. Ranges are offsets into the region,
/// lengths are bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receipt {
    /// The requested bytes.
    pub requested_bytes: usize,
    /// The reserved addresses in bytes, guard pages included.
    pub mapped_bytes: usize,
    /// The usable bytes: the requested bytes in whole pages.
    pub usable_bytes: usize,
    /// The kind of memory behind the addresses; `None` for memory of another owner.
    pub backing: Option<Backing>,
    /// Whether a NUMA policy was set and read back unchanged from the kernel.
    pub policy_verified: bool,
    /// The number of threads that populated; 0 if nothing was populated.
    pub threads: usize,
    /// The parts of the region, in order and without gaps.
    pub ranges: Vec<RangeReceipt>,
}

/// One part of a region: pages of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RangeReceipt {
    /// Its offsets in the region.
    pub range: Range<usize>,
    /// The first rung of the ladder.
    pub requested: PageSize,
    /// The rung that provided its pages.
    pub got: PageSize,
    /// The nodes of its resident pages, from a sample of up to 64. Empty if none is resident, or
    /// if the kernel does not report nodes.
    pub nodes: Nodes,
    /// The resident bytes.
    pub resident_bytes: u64,
    /// The largest error of `resident_bytes`; 0 if every page was checked.
    pub resident_error_bytes: u64,
    /// The bytes resident in hugepages, if the kernel reports them.
    pub huge_bytes: Option<u64>,
    /// The seconds that populating took; 0 if nothing was populated.
    pub seconds: f64,
    /// The speed of populating; 0 if nothing was populated.
    pub gib_per_s: f64,
    /// The reasons why it is not on the first rung, one for each skipped rung. A range of
    /// transparent hugepages can have one more, if the kernel used base pages for a part of it.
    pub fallbacks: Vec<Fallback>,
}

/// The reason why a range is one step down the ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fallback {
    /// The kernel has no hugetlb pool of this page size.
    NoPool {
        /// The page size.
        page: PageSize,
    },
    /// The pool has too few pages that are neither used nor promised.
    PoolShort {
        /// The page size.
        page: PageSize,
        /// The number of pages needed.
        wanted: u64,
        /// The number of pages that the pool could provide.
        free: u64,
    },
    /// The nodes of the policy have too few free pages of this size.
    NodesShort {
        /// The page size.
        page: PageSize,
        /// The number of pages needed.
        wanted: u64,
        /// The number of free pages on those nodes.
        free: u64,
    },
    /// A hugetlb cgroup allows too few pages.
    CgroupShort {
        /// The page size.
        page: PageSize,
        /// The number of pages needed.
        wanted: u64,
        /// The number of pages that the group still allows.
        left: u64,
    },
    /// The kernel could not map the pages, although the pool seemed to have them.
    PoolFailed {
        /// The page size.
        page: PageSize,
        /// The error number.
        errno: Errno,
    },
    /// The remaining bytes are fewer than one page of this size.
    Tail {
        /// The page size.
        page: PageSize,
    },
    /// In a ladder that does not descend: pages this large do not fit after the smaller ones.
    Unaligned {
        /// The page size.
        page: PageSize,
    },
    /// Children cannot safely inherit private hugetlb pages: a child that writes while the pool is
    /// empty would be killed.
    Inherited {
        /// The page size.
        page: PageSize,
    },
    /// Transparent hugepages are off for the machine, for this process or for this kind of memory.
    ThpOff {
        /// The setting that turns them off.
        setting: String,
    },
    /// The kernel did not accept the advice to use transparent hugepages.
    ThpFailed {
        /// The error number.
        errno: Errno,
    },
    /// A part of the range is not in hugepages: the kernel had too few contiguous ones.
    ThpPartial {
        /// Bytes in hugepages.
        huge: u64,
        /// The bytes of the range.
        wanted: u64,
    },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::NoPool { page } => {
                write!(f, "the kernel has no hugetlb pool of {page} pages")
            }
            Fallback::PoolShort { page, wanted, free } => {
                write!(f, "the hugetlb pool has {free} of {wanted} {page} pages")
            }
            Fallback::NodesShort { page, wanted, free } => {
                write!(f, "the nodes have {free} of {wanted} {page} pages free")
            }
            Fallback::CgroupShort { page, wanted, left } => {
                write!(f, "the hugetlb cgroup has {left} of {wanted} {page} pages left")
            }
            Fallback::PoolFailed { page, errno } => {
                write!(f, "the kernel could not map {page} pages of the hugetlb pool: {errno}")
            }
            Fallback::Tail { page } => write!(f, "shorter than one {page} page"),
            Fallback::Unaligned { page } => {
                write!(f, "{page} pages do not fit after smaller ones")
            }
            Fallback::Inherited { page } => {
                write!(f, "children cannot safely inherit private {page} pages")
            }
            Fallback::ThpOff { setting } => write!(f, "transparent hugepages are off: {setting}"),
            Fallback::ThpFailed { errno } => {
                write!(f, "the kernel does not accept advice for transparent hugepages: {errno}")
            }
            Fallback::ThpPartial { huge, wanted } => {
                write!(f, "the kernel provided hugepages for {huge} of {wanted} bytes")
            }
        }
    }
}

impl Receipt {
    /// Returns the resident bytes of all ranges.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.resident_bytes).sum()
    }

    /// Returns the bytes of the region on this rung.
    #[must_use]
    pub fn bytes_on(&self, page: PageSize) -> usize {
        self.ranges.iter().filter(|range| range.got == page).map(|range| range.range.len()).sum()
    }

    /// Checks that transparent hugepages are not resident as base pages. A strict ladder requires
    /// this, and it can be checked only after the memory is resident.
    ///
    /// # Errors
    /// [`NoPages`](ArenaError::NoPages) with the first range that is partly in base pages.
    pub fn check_hugepages(&self) -> Result<(), ArenaError> {
        for part in self.ranges.iter().filter(|part| part.got == PageSize::Thp) {
            let wanted = part.range.len() as u64;
            match part.huge_bytes {
                Some(huge) if huge < wanted && part.resident_bytes > huge => {
                    let reason = Fallback::ThpPartial { huge, wanted };
                    let range = part.range.clone();
                    return Err(ArenaError::NoPages { range, page: part.got, reason, limit: None });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the seconds that populating took.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.ranges.iter().map(|range| range.seconds).sum()
    }
}

/// A number of bytes, displayed in the largest unit that leaves at least 1.
pub(crate) struct HumanBytes(pub(crate) u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let unit = (self.0.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
        let text = if self.0.is_multiple_of(1 << (10 * unit)) {
            format!("{} {}", self.0 >> (10 * unit), UNITS[unit])
        } else {
            format!("{:.2} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit])
        };
        f.pad(&text)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requested {}, mapped {}, usable {}, {}{}; {} resident",
            HumanBytes(self.requested_bytes as u64),
            HumanBytes(self.mapped_bytes as u64),
            HumanBytes(self.usable_bytes as u64),
            self.backing.map_or("foreign".to_owned(), |backing| backing.to_string()),
            if self.policy_verified { ", NUMA policy verified" } else { "" },
            HumanBytes(self.resident_bytes()),
        )?;
        for part in &self.ranges {
            write!(
                f,
                "  {:#x}..{:#x}  {:>10}  requested {}, got {}, {}{} resident",
                part.range.start,
                part.range.end,
                HumanBytes(part.range.len() as u64),
                part.requested,
                part.got,
                if part.resident_error_bytes == 0 { "" } else { "about " },
                HumanBytes(part.resident_bytes),
            )?;
            if let Some(huge) = part.huge_bytes
                && part.got == PageSize::Thp
                && part.resident_bytes > 0
            {
                write!(f, " ({} in hugepages)", HumanBytes(huge))?;
            }
            if !part.nodes.0.is_empty() {
                write!(f, ", node {}", part.nodes)?;
            }
            if part.seconds > 0.0 {
                write!(f, ", {:.3} s, {:.2} GiB/s", part.seconds, part.gib_per_s)?;
            }
            for reason in &part.fallbacks {
                write!(f, "; {reason}")?;
            }
            writeln!(f)?;
        }
        if self.threads > 0 {
            writeln!(f, "  populated in {:.3} s by {} thread(s)", self.seconds(), self.threads)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_display_in_the_largest_unit() {
        let shown = |bytes| HumanBytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(4096), "4 KiB");
        assert_eq!(shown(3 << 29), "1.50 GiB");
        assert_eq!(shown(1 << 40), "1 TiB");
        assert_eq!(shown(u64::MAX), "16384.00 PiB");
    }
}
