//! *Deferred coalescing*: ranges that are free, but not holes yet.
//!
//! Coalescing a freed range with its neighbours reads the range's node and both neighbours', three
//! cache misses when many ranges are alive. In two situations it pays to wait. The ranges are then
//! *deferred*: already free in all figures, not yet holes. No caller can observe this: every
//! operation that reads the chain or the bins coalesces them first, and the hint allows for it.
//!
//! - *Reuse.* In a full store of one size, the next request is for the range that was just freed. A
//!   range of the size that was allocated last stays deferred if less than that size was free
//!   before. The next request of its size reuses it and touches no node or bin. (If more were free
//!   than that, coalescing could make room for another object, and reusing the range would keep its
//!   neighbours apart for good.)
//! - *Batching.* Evictions come in bursts. From the fifth free in a row on, sixteen ranges at a
//!   time are coalesced together, after all their nodes have been read once. Their cache misses
//!   then overlap, which they cannot across lock and unlock.

use super::ranges::{RangeTable, SENTINEL};

/// Ranges that are coalesced together.
const BATCH: usize = 16;
/// Nodes that stay in the cache: a megabyte. Only where there are more, they are read in advance,
/// which takes 60 instructions for each range.
const CACHED_NODES: u32 = 1 << 16;
/// Frees in a row that make a burst.
const BURST: u32 = 4;

/// A range that is free although its node is still a used one's.
#[derive(Clone, Copy, Default)]
pub(super) struct DeferredFree {
    pub(super) node: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// The ranges whose coalescing is deferred.
#[derive(Default)]
pub(super) struct DeferredFrees {
    freed: [DeferredFree; BATCH],
    len: usize,
    /// Sum of their sizes.
    bytes: u64,
    /// Size of the one deferred range if it may be reused, or 0.
    again: u64,
    /// Frees since the last plain allocation.
    streak: u32,
}

impl DeferredFrees {
    /// Returns the deferred range, if it has exactly this size and may be reused.
    #[inline]
    pub(super) fn reuse(&mut self, size: u64) -> Option<DeferredFree> {
        self.streak = 0;
        (self.again == size).then(|| {
            (self.again, self.bytes, self.len) = (0, 0, 0);
            self.freed[0]
        })
    }

    /// Counts a free; returns whether it belongs to a burst.
    #[inline]
    pub(super) fn count_free(&mut self) -> bool {
        self.streak += 1;
        self.streak > BURST
    }

    /// Returns whether the deferred ranges must be coalesced before another one is put.
    #[inline]
    pub(super) fn are_due(&self) -> bool {
        self.len == BATCH || self.again > 0
    }

    /// Defers the coalescing of a range.
    #[inline]
    pub(super) fn put(&mut self, freed: DeferredFree) {
        self.freed[self.len % BATCH] = freed;
        self.bytes += freed.size;
        self.len += 1;
    }

    /// Defers the coalescing of a range that may be reused. Nothing else is deferred.
    #[inline]
    pub(super) fn put_for_reuse(&mut self, freed: DeferredFree) {
        self.put(freed);
        self.again = freed.size;
    }

    /// Coalesces the deferred ranges.
    #[inline]
    pub(super) fn coalesce_into(&mut self, ranges: &mut RangeTable) {
        if self.len > 0 {
            self.coalesce_all(ranges);
        }
    }

    /// Coalesces the deferred ranges, of which there is at least one.
    pub(super) fn coalesce_all(&mut self, ranges: &mut RangeTable) {
        let len = self.len.min(BATCH);
        if len > 1 && ranges.chain().live() > CACHED_NODES {
            self.touch(ranges, len);
        }
        for i in 0..len {
            let DeferredFree { node, offset, size } = self.freed[i];
            ranges.release(node, offset, size);
        }
        (self.len, self.bytes, self.again) = (0, 0, 0);
        ranges.trim_holes(len);
    }

    /// Reads everything that releasing the deferred ranges will read, all of it at once.
    fn touch(&self, ranges: &RangeTable, len: usize) {
        let nodes = ranges.chain();
        let mut around = [(SENTINEL, SENTINEL); BATCH];
        for (around, freed) in around.iter_mut().zip(&self.freed[..len]) {
            let node = &nodes[freed.node];
            *around = (node.prev, node.next);
        }
        let words =
            around[..len].iter().map(|&(prev, next)| nodes[prev].word() ^ nodes[next].word());
        std::hint::black_box(words.fold(0, |all, word| all ^ word));
    }

    /// Returns the number of deferred ranges, and the sum of their sizes.
    #[inline(always)]
    pub(super) fn totals(&self) -> (usize, u64) {
        (self.len, self.bytes)
    }
}

/// Returns an upper bound of the longest range that could be allocated when `len` ranges of `bytes`
/// in all are deferred; exact if none is. `coalesced` is the longest one without them, `free` are
/// all free bytes.
#[inline(always)]
pub(super) fn largest_bound(coalesced: u64, (len, bytes): (usize, u64), free: u64) -> u64 {
    match len as u64 {
        0 => coalesced,
        // All of them may be in one row, with a hole between any two and at both ends.
        len => coalesced.saturating_mul(len + 1).saturating_add(bytes).min(free),
    }
}
