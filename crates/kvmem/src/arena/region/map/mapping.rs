//! *Mapping*: the state that all parts of a region share; it ends with the last part.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pinned_range::PinnedRanges;
use super::private::{MappedSpan, Segment};
use super::span::AddressSpan;
use crate::arena::pages::nodes_found;
use crate::arena::populate::{PopulateRange, measure};
use crate::arena::{ArenaError, Backing, Fallback, Numa, PageSize, RangeReceipt, Receipt};
use crate::sys;
use crate::trace::event;

/// The origin of a mapping's addresses.
enum MappingOrigin {
    /// Mapped by kvmem.
    Own { span: AddressSpan, file: Option<File>, backing: Backing },
    /// Lent by an owner, which is dropped with this value.
    Foreign { at: NonNull<u8>, len: usize, _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the address of foreign memory is only a number here. The caller that made the region
// promised that all threads may use it.
unsafe impl Send for MappingOrigin {}
// SAFETY: a shared reference gives no more access than an owned value.
unsafe impl Sync for MappingOrigin {}

/// Memory with its receipt and its pins.
pub(crate) struct Mapping {
    origin: MappingOrigin,
    numa: Numa,
    segments: Vec<Segment>,
    receipt: Receipt,
    pinned: PinnedRanges,
    /// Whether any pages were given back after the receipt was written.
    discarded: AtomicBool,
}

impl Mapping {
    pub(crate) fn from_span(
        mapped: MappedSpan,
        backing: Backing,
        numa: Numa,
        receipt: Receipt,
    ) -> Mapping {
        let MappedSpan { span, segments, file, .. } = mapped;
        Mapping::new(MappingOrigin::Own { span, file, backing }, numa, segments, receipt)
    }

    pub(crate) fn from_owner(
        at: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Mapping {
        let page = page_of(at);
        let segment = Segment {
            range: 0..len,
            requested: page,
            got: page,
            fallbacks: Vec::new(),
            by_collapse: false,
        };
        let receipt = Receipt {
            requested_bytes: len,
            mapped_bytes: len,
            usable_bytes: len,
            backing: None,
            policy_verified: false,
            threads: 0,
            ranges: vec![range_receipt(&segment, at)],
        };
        Mapping::new(
            MappingOrigin::Foreign { at, len, _owner: owner },
            Numa::None,
            vec![segment],
            receipt,
        )
    }

    fn new(origin: MappingOrigin, numa: Numa, segments: Vec<Segment>, receipt: Receipt) -> Mapping {
        let (pinned, discarded) = (PinnedRanges::default(), AtomicBool::new(false));
        Mapping { origin, numa, segments, receipt, pinned, discarded }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        match &self.origin {
            MappingOrigin::Own { span, .. } => span.base(),
            MappingOrigin::Foreign { at, .. } => *at,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.origin {
            MappingOrigin::Own { span, .. } => span.len(),
            MappingOrigin::Foreign { len, .. } => *len,
        }
    }

    pub(crate) fn file(&self) -> Option<&File> {
        match &self.origin {
            MappingOrigin::Own { file, .. } => file.as_ref(),
            MappingOrigin::Foreign { .. } => None,
        }
    }

    /// Returns the kind of memory behind the addresses; `None` for foreign memory.
    pub(crate) fn backing(&self) -> Option<Backing> {
        match &self.origin {
            MappingOrigin::Own { backing, .. } => Some(*backing),
            MappingOrigin::Foreign { .. } => None,
        }
    }

    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    pub(crate) fn pinned(&self) -> &PinnedRanges {
        &self.pinned
    }

    /// Notes that the receipt may count pages that were given back.
    pub(crate) fn set_discarded(&self) {
        // Relaxed: it guards nothing; threads that depend on it synchronize by other means.
        self.discarded.store(true, Ordering::Relaxed);
    }

    /// Returns whether all of a range was resident according to the receipt, and no pages were
    /// given back since.
    pub(crate) fn was_populated(&self, range: &Range<usize>) -> bool {
        let whole = |part: &RangeReceipt| {
            part.resident_error_bytes == 0 && part.resident_bytes == part.range.len() as u64
        };
        let mut parts = self.receipt.ranges.iter();
        // Relaxed: see `set_discarded`.
        !self.discarded.load(Ordering::Relaxed)
            && parts.all(|part| {
                part.range.end <= range.start || range.end <= part.range.start || whole(part)
            })
    }

    /// Returns the policy that the mapping was made with.
    pub(crate) fn numa(&self) -> &Numa {
        &self.numa
    }

    /// Returns the segments that overlap `range`, each with the common part.
    pub(crate) fn segments_in(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (&Segment, Range<usize>)> {
        self.segments.iter().filter_map(move |segment| {
            let common = range.start.max(segment.range.start)..range.end.min(segment.range.end);
            (!common.is_empty()).then_some((segment, common))
        })
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("base", &self.base())
            .field("len", &self.len())
            .field("backing", &self.backing())
            .field("segments", &self.segments)
            .finish_non_exhaustive()
    }
}

/// Returns the ranges of a mapping for populating.
pub(crate) fn parts(mapped: &MappedSpan) -> Vec<PopulateRange> {
    mapped
        .segments
        .iter()
        .map(|segment| PopulateRange {
            at: mapped.span.at(segment.range.start),
            range: segment.range.clone(),
            page: segment.got,
            by_collapse: segment.by_collapse,
        })
        .collect()
}

/// Describes a segment that begins at `at`.
fn range_receipt(segment: &Segment, at: NonNull<u8>) -> RangeReceipt {
    let (start, len) = outward(at, segment.range.len());
    let found = measure(start, len).ok();
    let unit = if segment.got == PageSize::Thp { sys::page_size() } else { segment.got.bytes() };
    RangeReceipt {
        range: segment.range.clone(),
        requested: segment.requested,
        got: segment.got,
        nodes: nodes_found(start, len, unit).unwrap_or_default(),
        resident_bytes: found
            .map_or(0, |found| found.resident_bytes.min(segment.range.len() as u64)),
        // Without any reading, the error is the whole range.
        resident_error_bytes: found.map_or(segment.range.len() as u64, |found| found.error_bytes),
        huge_bytes: found.and_then(|found| found.huge_bytes),
        seconds: 0.0,
        gib_per_s: 0.0,
        fallbacks: segment.fallbacks.clone(),
    }
}

/// Describes all segments, before the time of populating is known.
pub(crate) fn ranges(mapped: &MappedSpan) -> Vec<RangeReceipt> {
    mapped
        .segments
        .iter()
        .map(|segment| range_receipt(segment, mapped.span.at(segment.range.start)))
        .collect()
}

/// Compares populated pages with the request: their placement, and hugepages where the kernel
/// promised none.
pub(crate) fn verify(
    range: &mut RangeReceipt,
    numa: &Numa,
    strict: bool,
) -> Result<(), ArenaError> {
    numa.verify(&range.range, &range.nodes)?;
    let wanted = range.range.len() as u64;
    if range.got == PageSize::Thp
        && let Some(huge) = range.huge_bytes
        && huge < wanted
        && range.resident_bytes > huge
    {
        let reason = Fallback::ThpPartial { huge, wanted };
        if strict {
            let page = PageSize::Thp;
            return Err(ArenaError::NoPages {
                range: range.range.clone(),
                page,
                reason,
                limit: None,
            });
        }
        let RangeReceipt { range: offsets, got, .. } = &*range;
        event!(WARN, range = ?offsets, %got, %reason, "a rung of the ladder was passed");
        let _ = (offsets, got);
        range.fallbacks.push(reason);
    }
    Ok(())
}

/// Extends a range to whole base pages.
pub(crate) fn outward(at: NonNull<u8>, len: usize) -> (NonNull<u8>, usize) {
    let page = sys::page_size();
    let before = at.addr().get() % page;
    // SAFETY: pages are mapped whole, so the beginning of the page belongs to the same memory.
    (unsafe { at.sub(before) }, (before + len).next_multiple_of(page))
}

/// Returns the page size at an address of foreign memory, as the kernel reports it.
fn page_of(at: NonNull<u8>) -> PageSize {
    let address = at.addr().get();
    let text = sys::read_text("/proc/self/smaps").unwrap_or_default();
    let mut here = false;
    for line in text.lines() {
        if let Some((from, to)) = line.split(' ').next().and_then(|range| range.split_once('-'))
            && let (Ok(from), Ok(to)) =
                (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            here = (from..to).contains(&address);
        } else if here && let Some(size) = line.strip_prefix("KernelPageSize:") {
            let kib: u64 = size.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0);
            return PageSize::pooled(kib << 10).unwrap_or(PageSize::Base);
        }
    }
    PageSize::Base
}
