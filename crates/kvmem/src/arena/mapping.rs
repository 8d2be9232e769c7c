//! *Mapping*: what all parts of a region share, and what ends with the last of them.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::hold::Holds;
use super::lay::{Laid, Piece};
use super::numa::nodes_found;
use super::populate::Part;
use super::residency::measure;
use super::span::Span;
use super::{ArenaError, Backing, Fallback, Numa, PageSize, RangeReceipt, Receipt};
use crate::sys;
use crate::trace::event;

/// Where the addresses come from.
enum Memory {
    /// Ours.
    Own { span: Span, file: Option<File>, backing: Backing },
    /// Another's, who lives as long as this.
    Foreign { at: NonNull<u8>, len: usize, _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the address of foreign memory is only a number here; whoever made the region promised
// that it may be used by all threads.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Memory with its receipt.
pub(crate) struct Mapping {
    memory: Memory,
    numa: Numa,
    pieces: Vec<Piece>,
    receipt: Receipt,
    holds: Holds,
    /// Whether anything was given back since the receipt was written.
    discarded: AtomicBool,
}

impl Mapping {
    pub(crate) fn own(laid: Laid, backing: Backing, numa: Numa, receipt: Receipt) -> Mapping {
        let Laid { span, pieces, file, .. } = laid;
        Mapping::new(Memory::Own { span, file, backing }, numa, pieces, receipt)
    }

    pub(crate) fn foreign(
        at: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Mapping {
        let page = page_of(at);
        let piece = Piece {
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
            ranges: vec![range_receipt(&piece, at)],
        };
        Mapping::new(Memory::Foreign { at, len, _owner: owner }, Numa::None, vec![piece], receipt)
    }

    fn new(memory: Memory, numa: Numa, pieces: Vec<Piece>, receipt: Receipt) -> Mapping {
        let (holds, discarded) = (Holds::default(), AtomicBool::new(false));
        Mapping { memory, numa, pieces, receipt, holds, discarded }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Own { span, .. } => span.base(),
            Memory::Foreign { at, .. } => *at,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.memory {
            Memory::Own { span, .. } => span.len(),
            Memory::Foreign { len, .. } => *len,
        }
    }

    pub(crate) fn file(&self) -> Option<&File> {
        match &self.memory {
            Memory::Own { file, .. } => file.as_ref(),
            Memory::Foreign { .. } => None,
        }
    }

    /// What is behind the addresses; `None` if that is another's.
    pub(crate) fn backing(&self) -> Option<Backing> {
        match &self.memory {
            Memory::Own { backing, .. } => Some(*backing),
            Memory::Foreign { .. } => None,
        }
    }

    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Notes that the receipt says more than there is.
    pub(crate) fn set_discarded(&self) {
        // Relaxed: it guards nothing; who must know has been told by other means.
        self.discarded.store(true, Ordering::Relaxed);
    }

    /// Whether the receipt says that all of a range was resident, and nothing was given back since.
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

    /// The policy it was made with.
    pub(crate) fn numa(&self) -> &Numa {
        &self.numa
    }

    /// The pieces that have a part in `range`, each with that part.
    pub(crate) fn pieces_in(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (&Piece, Range<usize>)> {
        self.pieces.iter().filter_map(move |piece| {
            let common = range.start.max(piece.range.start)..range.end.min(piece.range.end);
            (!common.is_empty()).then_some((piece, common))
        })
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("base", &self.base())
            .field("len", &self.len())
            .field("backing", &self.backing())
            .field("pieces", &self.pieces)
            .finish_non_exhaustive()
    }
}

/// The parts of a mapping that populating works on.
pub(crate) fn parts(laid: &Laid) -> Vec<Part> {
    laid.pieces
        .iter()
        .map(|piece| Part {
            at: laid.span.at(piece.range.start),
            range: piece.range.clone(),
            page: piece.got,
            by_collapse: piece.by_collapse,
        })
        .collect()
}

/// What is to be said of a piece that begins at `at`.
fn range_receipt(piece: &Piece, at: NonNull<u8>) -> RangeReceipt {
    let (start, len) = outward(at, piece.range.len());
    let found = measure(start, len).ok();
    let unit = if piece.got == PageSize::Thp { sys::page_size() } else { piece.got.bytes() };
    RangeReceipt {
        range: piece.range.clone(),
        requested: piece.requested,
        got: piece.got,
        nodes: nodes_found(start, len, unit).unwrap_or_default(),
        resident_bytes: found.map_or(0, |found| found.resident_bytes.min(piece.range.len() as u64)),
        // Not knowing anything is an error of everything.
        resident_error_bytes: found.map_or(piece.range.len() as u64, |found| found.error_bytes),
        huge_bytes: found.and_then(|found| found.huge_bytes),
        seconds: 0.0,
        gib_per_s: 0.0,
        fallbacks: piece.fallbacks.clone(),
    }
}

/// What is to be said of what was laid, before it is known how long populating took.
pub(crate) fn ranges(laid: &Laid) -> Vec<RangeReceipt> {
    laid.pieces.iter().map(|piece| range_receipt(piece, laid.span.at(piece.range.start))).collect()
}

/// Compares what was populated with what was asked for: placement, and hugepages where they are
/// only tried for.
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
        event!(WARN, range = ?range.range, got = %range.got, %reason, "a rung of the ladder was passed");
        range.fallbacks.push(reason);
    }
    Ok(())
}

/// The whole base pages that a range has a part in.
pub(crate) fn outward(at: NonNull<u8>, len: usize) -> (NonNull<u8>, usize) {
    let page = sys::page_size();
    let before = at.addr().get() % page;
    // SAFETY: pages are mapped whole, so the beginning of the page is part of the same memory.
    (unsafe { at.sub(before) }, (before + len).next_multiple_of(page))
}

/// The size of the pages at an address of another's, as the kernel tells it.
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
