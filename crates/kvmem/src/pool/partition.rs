//! *Partition*: into which parts the memory is divided, decided before anything is populated.
//!
//! A key covers a part, and a block has one key with each registrar only if it does not straddle
//! the edge of two. So all registrars share one cut, that of the one that takes the least at once,
//! and the offsets are told its edge as their boundary. Where nobody asks for a cut there is none,
//! since every edge is a place where large blocks do not fit. A boundary that is only asked for is
//! the offsets' alone: the memory stays in one piece.

use super::{ReportedChoice, PoolError};
use crate::arena::{HumanBytes, PageSize, Receipt};
use crate::register::Limits;

/// Parts of a pool that grows, or is made ready range by range, where no registrar says otherwise.
const PART: u64 = 1 << 30;
/// More parts than this are no use to anybody.
const MAX_PARTS: u64 = 1 << 20;

/// What decides.
pub(super) struct PartitionOptions<'a> {
    /// Bytes asked for.
    pub(super) requested: u64,
    pub(super) receipt: &'a Receipt,
    pub(super) limits: &'a [Limits],
    pub(super) boundary: Option<u64>,
    /// Parts become ready, or fail, each by itself.
    pub(super) by_part: bool,
    pub(super) grows: bool,
}

/// What was decided.
pub(super) struct Partition {
    pub(super) part_bytes: usize,
    /// The pool grows and shrinks by so many bytes.
    pub(super) unit: u64,
    /// What no block straddles; `None`: there is one part, or nobody minds.
    pub(super) boundary: Option<u64>,
    pub(super) choice: ReportedChoice,
}

/// The most bytes of a part that these registrars want.
pub(super) fn wanted(limits: &[Limits]) -> Option<(u64, &str)> {
    let wanted =
        |limits: &Limits| limits.preferred_chunk_bytes.unwrap_or(u64::MAX).min(limits.max_bytes);
    let least = limits.iter().map(|limits| (wanted(limits), &*limits.device)).min()?;
    (least.0 < u64::MAX).then_some(least)
}

impl PartitionOptions<'_> {
    pub(super) fn partition(&self) -> Result<Partition, PoolError> {
        let len = self.receipt.usable_bytes as u64;
        let registrar = wanted(self.limits);
        let (most, why) = match (self.boundary, registrar) {
            (Some(requested), Some((least, device))) if least < requested => (
                least,
                format!(
                    "{device} takes no more at once, which is less than the boundary asked for"
                ),
            ),
            (Some(requested), _) => (requested, "asked for".to_owned()),
            (None, Some((least, device))) => {
                (least, format!("{device} takes it best in keys of this size"))
            }
            (None, None) if self.by_part => {
                (PART.min(self.requested), "ranges become ready one by one".to_owned())
            }
            (None, None) if self.grows && !self.limits.is_empty() => {
                (PART.min(self.requested), "it can grow".to_owned())
            }
            (None, None) => (u64::MAX, "nothing asks for a cut".to_owned()),
        };
        let part = if most >= len { len } else { self.whole_pages(most)? };
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

    /// Edges are where pages end, if a part has room for a page.
    fn whole_pages(&self, most: u64) -> Result<u64, PoolError> {
        let pages = self.receipt.ranges.iter().map(|range| range.got.bytes() as u64);
        let base = PageSize::Base.bytes() as u64;
        let fits = pages.filter(|page| *page <= most).max().unwrap_or(base);
        let part = most - most % fits;
        let least = (self.receipt.usable_bytes as u64).div_ceil(MAX_PARTS).next_multiple_of(base);
        if part < least { Err(PoolError::Boundary { requested: most, least }) } else { Ok(part) }
    }
}
