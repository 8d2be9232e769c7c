//! *Mapped span*: addresses with pages, segment by segment.

use std::fs::File;
use std::ops::Range;

use super::span::AddressSpan;
use crate::arena::populate::PopulateRange;
use crate::arena::{Fallback, PageSize};

/// A part of a region that consists of pages of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Offsets into the span.
    pub(crate) range: Range<usize>,
    pub(crate) requested: PageSize,
    pub(crate) obtained: PageSize,
    pub(crate) fallbacks: Vec<Fallback>,
    /// Transparent hugepages that populating makes, because faults do not. See `collapse.rs`.
    pub(crate) by_collapse: bool,
}

/// A span of addresses with pages.
#[derive(Debug)]
pub(crate) struct MappedSpan {
    pub(crate) span: AddressSpan,
    pub(crate) segments: Vec<Segment>,
    pub(crate) file: Option<File>,
    pub(crate) policy_verified: bool,
}

impl MappedSpan {
    /// Returns its segments as ranges to populate.
    pub(crate) fn populate_ranges(&self) -> Vec<PopulateRange> {
        self.segments
            .iter()
            .map(|segment| PopulateRange {
                at: self.span.at(segment.range.start),
                range: segment.range.clone(),
                page: segment.obtained,
                by_collapse: segment.by_collapse,
            })
            .collect()
    }
}
