//! *Survey*: what the kernel provided for each segment, as it is found after mapping.

use std::ptr::NonNull;

use super::mapped_span::{MappedSpan, Segment};
use super::numa_policy::nodes_found;
use crate::arena::pages::outward;
use crate::arena::populate::measure;
use crate::arena::region::receipt::RangeReceipt;
use crate::arena::{ArenaError, Fallback, Numa, PageSize};
use crate::sys;
use crate::trace::event;

/// Describes a segment that begins at `at`.
pub(super) fn range_receipt(segment: &Segment, at: NonNull<u8>) -> RangeReceipt {
    let (start, len) = outward(at, segment.range.len());
    let found = measure(start, len).ok();
    let unit =
        if segment.obtained == PageSize::Thp { sys::page_size() } else { segment.obtained.bytes() };
    RangeReceipt {
        range: segment.range.clone(),
        requested: segment.requested,
        obtained: segment.obtained,
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
    if range.obtained == PageSize::Thp
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
        let RangeReceipt { range: offsets, obtained, .. } = &*range;
        event!(WARN, range = ?offsets, got = %obtained, %reason, "a rung of the ladder was passed");
        let _ = (offsets, obtained);
        range.fallbacks.push(reason);
    }
    Ok(())
}

/// Returns the page size at an address of foreign memory, as the kernel reports it.
pub(super) fn page_of(at: NonNull<u8>) -> PageSize {
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
