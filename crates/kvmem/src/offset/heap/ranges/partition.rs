//! *Partition*: a space is cut into consecutive parts with a table each, and free bytes move from
//! one part to its neighbour.
//!
//! Ranges keep their nodes: a handle stays valid in the part that contains its range.

use std::ops::Range;

use super::super::bins::{Bins, Hole};
use super::super::chunked_table::NIL;
use super::chain::{RangeChain, SENTINEL, free_word};
use super::range_table::RangeTable;
use super::runs::Runs;

impl RangeTable {
    /// Returns where parts can begin that lie near `targets`, which ascend: at the start of a
    /// range, at a target itself in a free range longer than `long`, or at a multiple of the
    /// boundary.
    /// O(ranges).
    pub(crate) fn starts_near(&self, targets: &[u64], long: u64) -> Vec<u64> {
        let mut starts = vec![self.start()];
        let mut node = self.chain[SENTINEL].next;
        for &target in targets {
            let mut next = self.chain[node].next;
            while next != SENTINEL && self.start_of(next) <= target {
                (node, next) = (next, self.chain[next].next);
            }
            let range = self.start_of(node)..self.start_of(next);
            let is_free = self.chain[node].hole().is_some();
            let start = if self.has_boundary() {
                target - target % self.runs.boundary
            } else if is_free && range.end - range.start > long {
                target.max(range.start)
            } else {
                range.start
            };
            if starts.last().is_some_and(|&last| last < start) {
                starts.push(start);
            }
        }
        starts
    }

    /// Returns tables of the parts that begin at `starts`, the first at the start of the space.
    /// Each is the start of a range, or lies in a free one; with a boundary, it is a multiple of
    /// that. Nothing is deferred, and there is no small-object region. O(ranges).
    pub(crate) fn partition(&self, starts: &[u64], max_ranges: u32) -> Vec<RangeTable> {
        let mut parts = Vec::with_capacity(starts.len());
        let mut node = self.chain[SENTINEL].next;
        for (at, &start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).copied().unwrap_or(self.end());
            let boundary = self.has_boundary().then_some(self.runs.boundary);
            let mut part = PartTable::new(start..end, boundary);
            while node != SENTINEL {
                let range = self.start_of(node)..self.start_of(self.chain[node].next);
                if range.start >= end {
                    break;
                }
                let run = self.chain[node].hole().map(|id| self.runs.contain(&self.bins, id));
                part.append(node, range.start.max(start)..range.end.min(end), run);
                if range.end > end {
                    break;
                }
                node = self.chain[node].next;
            }
            parts.push(part.finish(max_ranges));
        }
        parts
    }

    /// Returns the length of the free range at the start of the space, or 0. Nothing is deferred,
    /// and there is no small-object region.
    pub(crate) fn free_head(&self) -> u64 {
        self.chain[self.chain[SENTINEL].next].hole().map_or(0, |id| self.bins[id].size)
    }

    /// Returns the length of the free range at the end of the space, or 0, under the same
    /// conditions.
    pub(crate) fn free_tail(&self) -> u64 {
        self.chain[self.chain[SENTINEL].prev].hole().map_or(0, |id| self.bins[id].size)
    }

    /// Removes `bytes` of the free range at the start of the space, which begins later. There is no
    /// boundary.
    pub(crate) fn cut_start(&mut self, bytes: u64) {
        let first = self.chain[SENTINEL].next;
        if let Some(id) = self.chain[first].hole().filter(|_| bytes > 0) {
            let Hole { offset, size, .. } = self.bins[id];
            if size == bytes {
                self.bins.remove(id);
                self.chain.remove(first);
            } else {
                self.bins.shrink(id, offset + bytes, size - bytes);
            }
            self.capacity -= bytes;
        }
    }

    /// Removes all ranges, which are free. The space is empty and lies at `at`.
    pub(crate) fn clear(&mut self, at: u64) {
        let boundary = self.has_boundary().then_some(self.runs.boundary);
        let max_ranges = self.chain.live() - 1 + self.chain.remaining();
        *self = RangeTable::without_ranges(&(at..at), boundary, max_ranges);
    }
}

/// The table of a part, while ranges are appended.
struct PartTable {
    space: Range<u64>,
    bins: Bins,
    runs: Runs,
    words: Vec<(u32, u64)>,
    allocated: u64,
    live: u64,
}

impl PartTable {
    fn new(space: Range<u64>, boundary: Option<u64>) -> Self {
        let (bins, runs, words) = (Bins::new(), Runs::new(boundary), Vec::new());
        PartTable { space, bins, runs, words, allocated: 0, live: 0 }
    }

    /// Appends a range with its node: a used one, a hole, or a run of free segments.
    fn append(&mut self, node: u32, range: Range<u64>, run: Option<bool>) {
        let size = range.end - range.start;
        let hole = Hole::new(range.start, size, node);
        let word = match run {
            None => {
                self.allocated += size;
                self.live += 1;
                range.start
            }
            Some(false) => free_word(self.bins.insert(hole)),
            Some(true) => {
                let id = self.bins.insert_held_back(hole);
                if range.end == self.space.end {
                    self.runs.wilderness = id;
                } else {
                    self.runs.list(&mut self.bins, id);
                }
                free_word(id)
            }
        };
        self.words.push((node, word));
    }

    fn finish(self, max_ranges: u32) -> RangeTable {
        let PartTable { space, bins, runs, words, allocated, live } = self;
        RangeTable {
            chain: RangeChain::with_nodes(space.end, max_ranges, &words),
            bins,
            runs,
            small_region: NIL,
            capacity: space.end - space.start,
            allocated,
            live,
        }
    }
}
