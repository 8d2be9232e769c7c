//! *Chunks*: how a region is cut for each registrar, from the ends of the smallest pieces.

use std::ops::Range;

use super::policy::PlanOptions;
use crate::register::Limits;

/// Returns the largest chunk in bytes.
pub(super) fn max_chunk_bytes(limits: &Limits, options: &PlanOptions) -> u64 {
    // An edge between two keys is no error that such a registrar's caller could meet beforehand.
    let preferred = limits.preferred_chunk_bytes.filter(|_| !limits.copies_by_address);
    let wanted = options.chunk_bytes.or(preferred).unwrap_or(u64::MAX);
    wanted.min(limits.max_bytes).max(1)
}

/// Merges pieces, by their ends, into chunks of at most `cap` bytes.
pub(super) fn merge(ends: &[usize], cap: u64) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut end) = (Vec::new(), 0, 0);
    for &next in ends {
        if end > start && (next - start) as u64 > cap {
            chunks.push(start..end);
            start = end;
        }
        end = next;
    }
    chunks.push(start..end);
    chunks
}

/// Returns the steps: one for each piece, or one for the whole region.
pub(super) fn steps(ends: &[usize], by_range: bool) -> Vec<Range<usize>> {
    let ends = if by_range { ends } else { &ends[ends.len() - 1..] };
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| start..*end).collect()
}

/// Returns the largest number that divides all ends but the last.
pub(super) fn boundary(ends: &[usize]) -> Option<u64> {
    let (_, inner) = ends.split_last()?;
    inner.iter().map(|end| *end as u64).reduce(gcd)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
