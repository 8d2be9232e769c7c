//! *Receipt*: what was asked for and what was got, range by range.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::numa::Nodes;
use super::{ArenaError, Backing, Errno, PageSize};

/// What a region is made of, as it was found when it was mapped. Ranges are offsets into the
/// region, lengths are bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receipt {
    /// Bytes asked for.
    pub requested_bytes: usize,
    /// Bytes of addresses held, guard pages included.
    pub mapped_bytes: usize,
    /// Bytes that may be used: what was asked for, in whole pages.
    pub usable_bytes: usize,
    /// What is behind the addresses; `None`: memory of another owner.
    pub backing: Option<Backing>,
    /// Whether a NUMA policy was set and was read back from the kernel as it was set.
    pub policy_verified: bool,
    /// Threads that populated; 0 where nothing was populated.
    pub threads: usize,
    /// The parts of the region, in order and without gaps.
    pub ranges: Vec<RangeReceipt>,
}

/// One part of a region: pages of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RangeReceipt {
    /// Where it lies, as offsets into the region.
    pub range: Range<usize>,
    /// The first rung of the ladder.
    pub requested: PageSize,
    /// The rung it is on.
    pub got: PageSize,
    /// The nodes on which its resident pages were found (a sample of up to 64). Empty: none is
    /// resident, or the kernel does not say.
    pub nodes: Nodes,
    /// Bytes of it that were resident.
    pub resident_bytes: u64,
    /// Greatest error of the former in bytes; 0 where every page was looked at.
    pub resident_error_bytes: u64,
    /// Bytes of it that were resident in hugepages, where the kernel says.
    pub huge_bytes: Option<u64>,
    /// Seconds that populating took; 0 where nothing was populated.
    pub seconds: f64,
    /// Speed of populating; 0 where nothing was populated.
    pub gib_per_s: f64,
    /// Why it is not on the first rung: a reason for each rung that was passed. A range of
    /// transparent hugepages can have one more, if the kernel used base pages for some of it.
    pub fallbacks: Vec<Fallback>,
}

/// Why a range is one step down the ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fallback {
    /// The kernel has no pool of this page size.
    NoPool {
        /// The page size.
        page: PageSize,
    },
    /// The pool has too few pages that are free and not promised to others.
    PoolShort {
        /// The page size.
        page: PageSize,
        /// Pages wanted.
        wanted: u64,
        /// Pages the pool could give.
        free: u64,
    },
    /// The nodes of the policy have too few free pages of this size.
    NodesShort {
        /// The page size.
        page: PageSize,
        /// Pages wanted.
        wanted: u64,
        /// Pages free on those nodes.
        free: u64,
    },
    /// A hugetlb cgroup allows too few pages.
    CgroupShort {
        /// The page size.
        page: PageSize,
        /// Pages wanted.
        wanted: u64,
        /// Pages left in the group.
        left: u64,
    },
    /// The pool refused, though it seemed to have the pages.
    PoolRefused {
        /// The page size.
        page: PageSize,
        /// Why.
        errno: Errno,
    },
    /// The rest is shorter than one page of this size.
    Tail {
        /// The page size.
        page: PageSize,
    },
    /// In a ladder that does not descend: pages this large do not fit behind the smaller ones.
    Unaligned {
        /// The page size.
        page: PageSize,
    },
    /// Private pages of a pool cannot be inherited by a child: it would be killed if it wrote when
    /// the pool is empty.
    Inherited {
        /// The page size.
        page: PageSize,
    },
    /// Transparent hugepages are switched off, for the machine or for this process or this kind of
    /// memory.
    ThpOff {
        /// The setting that says so.
        setting: String,
    },
    /// The kernel refused the advice to use transparent hugepages.
    ThpRefused {
        /// Why.
        errno: Errno,
    },
    /// Not all of the range is in hugepages: the kernel had too few that were contiguous.
    ThpPartial {
        /// Bytes in hugepages.
        huge: u64,
        /// Bytes wanted.
        wanted: u64,
    },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::NoPool { page } => write!(f, "the kernel has no pool of {page} pages"),
            Fallback::PoolShort { page, wanted, free } => {
                write!(f, "the pool has {free} of {wanted} {page} pages")
            }
            Fallback::NodesShort { page, wanted, free } => {
                write!(f, "the nodes have {free} of {wanted} {page} pages free")
            }
            Fallback::CgroupShort { page, wanted, left } => {
                write!(f, "the hugetlb cgroup has {left} of {wanted} {page} pages left")
            }
            Fallback::PoolRefused { page, errno } => {
                write!(f, "the pool of {page} pages refused: {errno}")
            }
            Fallback::Tail { page } => write!(f, "shorter than one {page} page"),
            Fallback::Unaligned { page } => {
                write!(f, "{page} pages do not fit behind smaller ones")
            }
            Fallback::Inherited { page } => {
                write!(f, "private {page} pages cannot be inherited by a child safely")
            }
            Fallback::ThpOff { setting } => write!(f, "transparent hugepages are off: {setting}"),
            Fallback::ThpRefused { errno } => {
                write!(f, "transparent hugepages were refused: {errno}")
            }
            Fallback::ThpPartial { huge, wanted } => {
                write!(f, "the kernel gave hugepages for {huge} of {wanted} bytes")
            }
        }
    }
}

impl Receipt {
    /// Bytes that were resident, over all ranges.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.resident_bytes).sum()
    }

    /// Bytes of the region on this rung.
    #[must_use]
    pub fn bytes_on(&self, page: PageSize) -> usize {
        self.ranges.iter().filter(|range| range.got == page).map(|range| range.range.len()).sum()
    }

    /// Refuses transparent hugepages that are resident as base pages: what a strict ladder means by
    /// them, which shows only once the memory is resident.
    ///
    /// # Errors
    /// [`NoPages`](ArenaError::NoPages) with the first such range.
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

    /// Seconds that populating took.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.ranges.iter().map(|range| range.seconds).sum()
    }
}

/// Bytes for people, in the largest unit that leaves at least 1.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
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
            "asked {}, mapped {}, usable {}, {}{}; {} resident",
            Size(self.requested_bytes as u64),
            Size(self.mapped_bytes as u64),
            Size(self.usable_bytes as u64),
            self.backing.map_or("foreign".to_owned(), |backing| backing.to_string()),
            if self.policy_verified { ", NUMA policy verified" } else { "" },
            Size(self.resident_bytes()),
        )?;
        for part in &self.ranges {
            write!(
                f,
                "  {:#x}..{:#x}  {:>10}  asked {}, got {}, {}{} resident",
                part.range.start,
                part.range.end,
                Size(part.range.len() as u64),
                part.requested,
                part.got,
                if part.resident_error_bytes == 0 { "" } else { "about " },
                Size(part.resident_bytes),
            )?;
            if let Some(huge) = part.huge_bytes
                && part.got == PageSize::Thp
                && part.resident_bytes > 0
            {
                write!(f, " ({} in hugepages)", Size(huge))?;
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
    fn sizes_for_people() {
        let shown = |bytes| Size(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(4096), "4 KiB");
        assert_eq!(shown(3 << 29), "1.50 GiB");
        assert_eq!(shown(1 << 40), "1 TiB");
        assert_eq!(shown(u64::MAX), "16384.00 PiB");
    }
}
