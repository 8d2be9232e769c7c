//! *Receipt*: what was requested and what the kernel provided, range by range.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::backing::Backing;
use crate::arena::{ArenaError, Fallback, HumanBytes, Nodes, PageSize};

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
    /// The number of threads that populated while mapping; 0 if nothing was populated then.
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
    pub obtained: PageSize,
    /// The nodes of its resident pages, from a sample of up to 64. Empty if none is resident, or
    /// if the kernel does not report nodes.
    pub nodes: Nodes,
    /// The resident bytes.
    pub resident_bytes: u64,
    /// The largest error of `resident_bytes`; 0 if every page was checked.
    pub resident_error_bytes: u64,
    /// The bytes resident in hugepages, if the kernel reports them.
    pub huge_bytes: Option<u64>,
    /// The seconds that populating took while mapping; 0 if nothing was populated then.
    pub seconds: f64,
    /// The speed of populating while mapping; 0 if nothing was populated then.
    pub gib_per_s: f64,
    /// The reasons why it is not on the first rung, one for each skipped rung. A range of
    /// transparent hugepages can have one more, if the kernel used base pages for a part of it.
    pub fallbacks: Vec<Fallback>,
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
        self.ranges
            .iter()
            .filter(|range| range.obtained == page)
            .map(|range| range.range.len())
            .sum()
    }

    /// Checks that transparent hugepages are not resident as base pages. A strict ladder requires
    /// this, and it can be checked only after the memory is resident.
    ///
    /// # Errors
    /// [`NoPages`](ArenaError::NoPages) with the first range that is partly in base pages.
    pub fn check_hugepages(&self) -> Result<(), ArenaError> {
        for part in self.ranges.iter().filter(|part| part.obtained == PageSize::Thp) {
            let wanted = part.range.len() as u64;
            match part.huge_bytes {
                Some(huge) if huge < wanted && part.resident_bytes > huge => {
                    let reason = Fallback::ThpPartial { huge, wanted };
                    let range = part.range.clone();
                    return Err(ArenaError::NoPages {
                        range,
                        page: part.obtained,
                        reason,
                        limit: None,
                    });
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
                part.obtained,
                if part.resident_error_bytes == 0 { "" } else { "about " },
                HumanBytes(part.resident_bytes),
            )?;
            if let Some(huge) = part.huge_bytes
                && part.obtained == PageSize::Thp
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
