//! *Partition*: divides the memory into parts, before anything is populated.
//!
//! A key covers a part, and a block has one key with each registrar only if it does not straddle
//! the edge of two parts. All registrars therefore share one partition, that of the registrar with
//! the smallest maximum. The offset allocator takes the length of a part as its boundary. The
//! memory stays in one part if neither the caller nor a registrar needs a partition, since large
//! blocks do not fit across an edge. A boundary that only the caller requested applies to the
//! offsets alone: the memory stays in one part.

use crate::arena::{HumanBytes, PageSize, Receipt};
use crate::pool::{PoolError, ReportedChoice};
use crate::register::Limits;

/// Bytes of a part of a pool that grows or becomes ready part by part, if no registrar prefers
/// another size.
const PART: u64 = 1 << 30;
/// The maximum number of parts; more would serve no purpose.
const MAX_PARTS: u64 = 1 << 20;

/// The input of the decision.
pub(in crate::pool) struct PartitionOptions<'a> {
    /// Bytes requested.
    pub(in crate::pool) requested: u64,
    pub(in crate::pool) receipt: &'a Receipt,
    pub(in crate::pool) limits: &'a [Limits],
    pub(in crate::pool) boundary: Option<u64>,
    /// Each part becomes ready, or fails, separately.
    pub(in crate::pool) by_part: bool,
    pub(in crate::pool) grows: bool,
}

/// The division of the memory into parts.
pub(in crate::pool) struct Partition {
    pub(in crate::pool) part_bytes: usize,
    /// The pool grows and shrinks by multiples of this number of bytes.
    pub(in crate::pool) unit: u64,
    /// The boundary, which no block straddles; `None`: the whole pool is within one boundary.
    pub(in crate::pool) boundary: Option<u64>,
    pub(in crate::pool) choice: ReportedChoice,
}

/// Returns the smallest preferred part of these registrars, with the registrar's name; `None` if no
/// registrar has a preference or a limit.
pub(in crate::pool) fn wanted(limits: &[Limits]) -> Option<(u64, &str)> {
    let wanted =
        |limits: &Limits| limits.preferred_chunk_bytes.unwrap_or(u64::MAX).min(limits.max_bytes);
    let least = limits.iter().map(|limits| (wanted(limits), &*limits.device)).min()?;
    (least.0 < u64::MAX).then_some(least)
}

impl PartitionOptions<'_> {
    pub(in crate::pool) fn partition(&self) -> Result<Partition, PoolError> {
        let len = self.receipt.usable_bytes as u64;
        let registrar = wanted(self.limits);
        let (max, why) = match (self.boundary, registrar) {
            (Some(requested), Some((least, device))) if least < requested => (
                least,
                format!(
                    "{device} takes no more at once, which is less than the requested boundary"
                ),
            ),
            (Some(requested), _) => (requested, "requested".to_owned()),
            (None, Some((least, device))) => {
                (least, format!("{device} takes it best in keys of this size"))
            }
            (None, None) if self.by_part => {
                (PART.min(self.requested), "ranges become ready one by one".to_owned())
            }
            (None, None) if self.grows && !self.limits.is_empty() => {
                (PART.min(self.requested), "it can grow".to_owned())
            }
            (None, None) => (u64::MAX, "nothing requires one".to_owned()),
        };
        let part = if max >= len { len } else { self.whole_pages(max)? };
        let boundary = (part < len).then_some(part);
        let chosen = match boundary {
            Some(bytes) => HumanBytes(bytes).to_string(),
            None => "none".to_owned(),
        };
        let choice = ReportedChoice { what: "boundary".to_owned(), chosen, why };
        let in_parts = self.by_part || !self.limits.is_empty();
        let (part, unit) =
            if in_parts { (part, part) } else { (len, PageSize::Base.bytes() as u64) };
        Ok(Partition { part_bytes: part as usize, unit, boundary, choice })
    }

    /// Rounds a length of parts down to whole pages, if a part has space for a page.
    fn whole_pages(&self, max: u64) -> Result<u64, PoolError> {
        let pages = self.receipt.ranges.iter().map(|range| range.obtained.bytes() as u64);
        let base = PageSize::Base.bytes() as u64;
        let fits = pages.filter(|page| *page <= max).max().unwrap_or(base);
        let part = max - max % fits;
        let min = (self.receipt.usable_bytes as u64).div_ceil(MAX_PARTS).next_multiple_of(base);
        if part < min { Err(PoolError::Boundary { requested: max, min }) } else { Ok(part) }
    }
}
