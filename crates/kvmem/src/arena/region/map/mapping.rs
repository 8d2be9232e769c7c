//! *Mapping*: the state that all parts of a region share; it ends with the last part.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mapped_span::{MappedSpan, Segment};
use super::pinned_ranges::PinnedRanges;
use super::span::AddressSpan;
use super::survey::{page_of, range_receipt};
use crate::arena::Numa;
use crate::arena::region::backing::Backing;
use crate::arena::region::receipt::{RangeReceipt, Receipt};

/// The origin of a mapping's addresses.
enum MappingOrigin {
    /// Mapped by kvmem.
    Own { span: AddressSpan, file: Option<File>, backing: Backing },
    /// Lent by an owner, which is dropped with this value.
    Foreign { at: NonNull<u8>, len: usize, _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: spans and files may move between threads, and so may the owner, by its bounds. The
// address of foreign memory is only a number here, and `Region::from_raw` demands that any thread
// may use the bytes.
unsafe impl Send for MappingOrigin {}
// SAFETY: a shared reference gives addresses and the file, which threads may share. The owner is
// never referred to; it is only dropped.
unsafe impl Sync for MappingOrigin {}

/// Memory with its receipt and its pins.
pub(crate) struct Mapping {
    origin: MappingOrigin,
    numa: Numa,
    segments: Vec<Segment>,
    receipt: Receipt,
    pinned: PinnedRanges,
    /// Whether any pages were returned after the receipt was written.
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
            obtained: page,
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

    /// Closes the descriptor of the file. The addresses stay mapped.
    pub(crate) fn close_file(&mut self) {
        if let MappingOrigin::Own { file, .. } = &mut self.origin {
            *file = None;
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

    /// Notes that the receipt may count pages that were returned.
    pub(crate) fn set_discarded(&self) {
        // Relaxed: it guards nothing; threads that depend on it synchronize by other means.
        self.discarded.store(true, Ordering::Relaxed);
    }

    /// Returns whether all of a range was resident according to the receipt, and no pages were
    /// returned since.
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
