//! *Cuts*: used ranges, taken out of binned holes.

use std::hint::select_unpredictable;
use std::ops::Range;

use super::super::bins::Hole;
use super::chain::{RangeNode, SENTINEL};
use super::placed::Placed;
use super::range_table::RangeTable;
use crate::offset::placement::HoleEnd;

impl RangeTable {
    /// Allocates `size` bytes at one end of the binned hole `id`, which is at least that long.
    #[inline(always)]
    pub(crate) fn take(&mut self, id: u32, size: u64, end: HoleEnd) -> Placed {
        let hole = self.bins[id];
        if hole.size == size {
            return self.take_whole(id);
        }
        self.take_part(id, hole, self.chain[hole.node], size, end)
    }

    /// Allocates `size` bytes at one end of the binned hole `id`, which is longer, and whose record
    /// and node have been read.
    #[inline(always)]
    pub(crate) fn take_part(
        &mut self,
        id: u32,
        Hole { offset, size: before, node, .. }: Hole,
        RangeNode { prev, next, .. }: RangeNode,
        size: u64,
        end: HoleEnd,
    ) -> Placed {
        self.count_allocated(size);
        // Without a branch: the end is unpredictable.
        let low = end == HoleEnd::Low;
        let (left, right) = select_unpredictable(low, (prev, node), (node, next));
        let start = offset + (before - size) * u64::from(!low);
        let used = self.chain.insert_between(left, right, start);
        self.bins.shrink(id, offset + size * u64::from(low), before - size);
        Placed { node: used, offset: start }
    }

    /// Allocates the whole binned hole `id`.
    // Out of line: the search takes most exact holes by `take_read`.
    #[inline(never)]
    pub(crate) fn take_whole(&mut self, id: u32) -> Placed {
        self.take_read(id, self.bins[id])
    }

    /// Allocates the whole binned hole `id`, whose record has been read.
    #[inline(always)]
    pub(crate) fn take_read(&mut self, id: u32, hole: Hole) -> Placed {
        let Hole { offset, size, node, .. } = hole;
        self.bins.remove_read(id, hole);
        self.chain.set_used(node, offset);
        self.count_allocated(size);
        Placed { node, offset }
    }

    /// Allocates `[start, start + size)` out of the binned hole `id`, which contains it.
    pub(crate) fn take_at(&mut self, id: u32, start: u64, size: u64) -> Placed {
        let Hole { offset, node, .. } = self.bins[id];
        let end = self.bins[id].end();
        if start == offset {
            return self.take(id, size, HoleEnd::Low);
        }
        if start + size == end {
            return self.take(id, size, HoleEnd::High);
        }
        self.count_allocated(size);
        self.bins.shrink(id, offset, start - offset);
        let used = self.chain.insert_after(node, start);
        let rest = self.chain.insert_after(used, start + size);
        let id = self.bins.insert(Hole::new(start + size, end - start - size, rest));
        self.chain.set_free(rest, id);
        Placed { node: used, offset: start }
    }
}

impl RangeTable {
    /// Allocates exactly `range`, if it is part of one free range and crosses no boundary. Needs
    /// four nodes. O(1 + ranges behind it).
    pub(crate) fn take_range(&mut self, range: Range<u64>) -> Option<Placed> {
        let Range { start, end } = range;
        if start >= end || end > self.start_of(SENTINEL) {
            return None;
        }
        let mut node = self.chain[SENTINEL].prev;
        while node != SENTINEL && self.start_of(node) > start {
            node = self.chain[node].prev;
        }
        let mut id = self.chain[node].hole().filter(|&id| end <= self.bins[id].end())?;
        if self.has_boundary() {
            if start / self.runs.boundary != (end - 1) / self.runs.boundary {
                return None;
            }
            id = self.open_around(id, start);
        }
        Some(self.take_at(id, start, end - start))
    }
}

/// Returns where a range of `size` bytes at a multiple of `align` begins in a free one, if it fits.
pub(crate) fn aligned_start(free: Range<u64>, size: u64, align: u64) -> Option<u64> {
    let start = free.start.checked_next_multiple_of(align)?;
    (start <= free.end && free.end - start >= size).then_some(start)
}
