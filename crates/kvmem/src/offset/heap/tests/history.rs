//! Random histories of all calls, beside an oracle of intervals.
//!
//! The oracle knows which bytes are in use. Where a range goes is the heap's choice; whether a
//! request succeeds, each figure, each error and the map follow from the oracle, and are exact.

use std::cmp::Reverse;
use std::ops::Range;

use kvmem_testkit::oracle::Oracle;
use kvmem_testkit::random::Random;

use super::super::chunked_table::NIL;
use super::super::heap::{Heap, NODES_PER_CHANGE};
use super::super::ranges::{Placed, SENTINEL, SizedRange};
use super::super::report::{MapRange, bin_reports};
use crate::offset::error::{AllocError, SpaceError};
use crate::offset::placement::Placement;

const CAPACITY: u64 = 1 << 20;

/// The sizes that a history requests.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// A third of them small: a region is held back for these.
    Bimodal,
    /// Four sizes.
    Few,
    /// Few objects of about the same size: a space with slots.
    Alike,
    /// Tiny ones: many ranges, mostly neighbours.
    Tiny,
}

/// A heap, the oracle, and the ranges in use.
struct History {
    heap: Heap,
    oracle: Oracle,
    random: Random,
    live: Vec<(Placed, u64)>,
    sizes: Sizes,
    start: u64,
    max_ranges: u32,
    /// Where the bytes in use move to, in bytes, until it is reached.
    target: u64,
}

impl History {
    fn new(
        seed: u64,
        start: u64,
        boundary: Option<u64>,
        placement: Placement,
        sizes: Sizes,
        max_ranges: u32,
    ) -> Self {
        let mut oracle = Oracle::new(start + CAPACITY, boundary);
        for at in (0..start).step_by(boundary.unwrap_or(start.max(1)) as usize) {
            oracle.grant(at, boundary.unwrap_or(start)).unwrap();
        }
        let heap = Heap::new(start..start + CAPACITY, boundary, placement, max_ranges);
        let random = Random::new(seed);
        History { heap, oracle, random, live: vec![], sizes, start, max_ranges, target: CAPACITY }
    }

    fn size(&mut self) -> u64 {
        let size = match self.sizes {
            Sizes::Bimodal if self.random.once_in(3) => 1 + self.random.below(1500),
            Sizes::Bimodal => 16_384 + self.random.below(48) * 1024,
            Sizes::Few => [20_000, 30_000, 50_000, 70_000][self.random.below(4) as usize],
            Sizes::Alike => 80_000 + self.random.below(300) * 33,
            Sizes::Tiny => 1 + self.random.log_below(6000),
        };
        size.min(self.heap.limit())
    }

    fn align(&mut self) -> u64 {
        1 << self.random.below(18)
    }

    /// Takes one of the used ranges out of the record.
    fn victim(&mut self) -> Option<(Placed, u64)> {
        let at = self.random.below(self.live.len().max(1) as u64) as usize;
        (at < self.live.len()).then(|| self.live.swap_remove(at))
    }

    fn granted(&mut self, placed: Placed, size: u64) {
        self.oracle.grant(placed.offset, size).unwrap();
        self.live.push((placed, size));
    }

    /// Fails if nodes were left for a request that failed.
    fn excused(&mut self, what: &str) {
        assert!(self.max_ranges < u32::MAX && !self.heap.has_free_nodes(), "{what} fits");
    }

    fn error(&self, requested: u64) -> AllocError {
        let limit = self.heap.limit();
        let (free, largest_free) = (self.oracle.free_bytes(), self.oracle.largest_free());
        match requested > limit {
            true => AllocError::TooLarge { requested, limit },
            false => AllocError::OutOfSpace { requested, free, largest_free },
        }
    }

    fn allocate(&mut self, size: u64, align: u64) {
        let fits = size <= self.heap.limit() && self.oracle.fits(size, align);
        match self.heap.allocate_aligned(size, align) {
            Some(placed) => {
                assert!(placed.offset.is_multiple_of(align));
                self.granted(placed, size);
            }
            None if fits => {
                self.excused("a request");
                assert!(!self.oracle.has_exact(size, align), "a whole range needs no node");
                let ranges = self.heap.ranges();
                assert_eq!(
                    self.heap.allocation_error(size),
                    AllocError::TooManyRanges { ranges },
                    "{size}"
                );
            }
            None if align == 1 => {
                assert_eq!(self.heap.allocation_error(size), self.error(size));
            }
            None => (),
        }
    }

    fn allocate_several(&mut self) {
        let (size, n) = (self.size(), 1 + self.random.below(12) as usize);
        let times = self.oracle.fits_times(size).min(n as u128) as usize;
        if self.random.once_in(2) {
            let pieces = self.heap.allocate_up_to(size, n);
            if pieces.len() < times {
                self.excused("one more");
            }
            assert!(pieces.len() <= times, "{} of {times}", pieces.len());
            return self.granted_all(&pieces, |piece| assert_eq!(piece.size, size));
        }
        match self.heap.allocate_batch(size, n) {
            Ok(pieces) => {
                assert_eq!((pieces.len(), times), (n, n));
                self.granted_all(&pieces, |piece| assert_eq!(piece.size, size));
            }
            Err(error) if self.max_ranges < u32::MAX => {
                assert!(times < n || matches!(error, AllocError::TooManyRanges { .. }), "{error}");
            }
            Err(error) => {
                assert!(times < n, "{n} ranges of {size} bytes: {error}");
                assert_eq!(error, self.error(size).of_batch(size, n));
            }
        }
    }

    fn granted_all(&mut self, pieces: &[SizedRange], mut each: impl FnMut(&SizedRange)) {
        for piece in pieces {
            each(piece);
            self.granted(piece.placed, piece.size);
        }
    }

    /// Returns the lengths of the free ranges, divided at boundaries, the longest first.
    fn free_pieces(&self) -> Vec<u64> {
        let mut pieces = Vec::new();
        for Range { mut start, end } in self.free_ranges() {
            while start < end {
                let edge = self.oracle.boundary().map_or(end, |it| start - start % it + it);
                pieces.push(edge.min(end) - start);
                start = edge.min(end);
            }
        }
        pieces.sort_unstable_by_key(|&size| Reverse(size));
        pieces
    }

    /// The longest free ranges are taken whole, and the rest out of one that is long enough.
    fn allocate_scattered(&mut self) {
        let free = self.oracle.free_bytes();
        let total = match self.random.below(4) {
            0 => self.size(),
            1 => 1 + self.random.below(free + free / 8 + 1),
            2 => free - self.random.below(free / 8 + 1).min(free.saturating_sub(1)),
            _ => 2 * self.size(),
        }
        .max(1);
        let max_ranges = 1 + self.random.below(20) as usize;
        let mut expected = Vec::new();
        let mut rest = total;
        let free_pieces = self.free_pieces();
        for &piece in &free_pieces {
            expected.push(piece.min(rest));
            rest -= piece.min(rest);
            if rest == 0 {
                break;
            }
        }
        let fits = rest == 0 && expected.len() <= max_ranges;
        assert_eq!(fits, self.oracle.fits_scattered(total, max_ranges));
        let capacity = self.heap.capacity();
        // Nodes for what is cut, and for segments that are opened.
        let nodes = self.heap.ranges.chain().remaining();
        match self.heap.allocate_scattered(total, max_ranges) {
            Ok(pieces) => {
                assert!(fits, "{total} in {max_ranges}");
                let sizes: Vec<u64> = pieces.iter().map(|piece| piece.size).collect();
                if sizes != expected {
                    assert!(nodes < NODES_PER_CHANGE + expected.len() as u32, "{sizes:?}");
                    assert!(sizes.len() <= max_ranges && sizes.iter().sum::<u64>() == total);
                }
                self.granted_all(&pieces, |_| ());
            }
            Err(AllocError::TooManyRanges { ranges }) => {
                assert!(self.max_ranges < u32::MAX);
                assert!(nodes < NODES_PER_CHANGE + expected.len() as u32 + 2, "{nodes} nodes");
                assert!(ranges <= u64::from(self.max_ranges));
            }
            Err(error) => {
                assert!(!fits, "{total} in {max_ranges}: {error}");
                let largest_free = self.oracle.largest_free();
                let expected = match total > capacity {
                    true => AllocError::TooLarge { requested: total, limit: capacity },
                    false => AllocError::OutOfSpace { requested: total, free, largest_free },
                };
                assert_eq!(error, expected);
            }
        }
    }

    fn allocate_at(&mut self) {
        let at = self.start + self.random.below(self.heap.capacity());
        let Some(Range { start, end }) = self.oracle.free_from(at) else { return };
        let len = end - start;
        let (from, size) = match self.random.below(4) {
            0 => (start, len),
            1 => (start, self.size()),
            2 => (end.saturating_sub(self.size()).max(self.start), self.size()),
            _ => (start + self.random.below(len), 1 + self.random.below(len)),
        };
        match self.heap.allocate_at(from..from + size) {
            Ok(placed) => {
                assert_eq!(placed.offset, from);
                self.granted(placed, size);
            }
            Err(AllocError::TooManyRanges { .. }) => self.excused("a certain range"),
            Err(error) => {
                let capacity = self.heap.capacity();
                let end = from + size;
                assert_eq!(error, AllocError::NotFree { start: from, end, capacity });
                assert!(self.oracle.grant(from, size).is_err(), "{from}..{end} is free");
            }
        }
    }

    fn free(&mut self) {
        // More in a row than are coalesced one by one, now and then.
        let frees = if self.random.once_in(5) { 1 + self.random.below(40) } else { 1 };
        for _ in 0..frees {
            let Some((Placed { node, offset }, size)) = self.victim() else { return };
            assert_eq!(self.heap.offset_of(node), offset);
            self.heap.free(node, offset, size);
            assert_eq!(self.oracle.free(offset), Ok(size));
        }
    }

    fn free_batch(&mut self) {
        let mut batch: Vec<Placed> = Vec::new();
        if self.random.once_in(2) {
            self.live.sort_unstable_by_key(|(placed, _)| placed.offset);
            let from = self.random.below(self.live.len().max(1) as u64) as usize;
            let len = self.random.below(12) as usize;
            let to = (from + len).min(self.live.len());
            for (placed, _) in self.live.drain(from.min(to)..to) {
                batch.push(placed);
            }
        } else {
            let len = self.random.below(6);
            batch.extend((0..len).map_while(|_| self.victim()).map(|(placed, _)| placed));
        }
        self.heap.free_batch(&batch);
        for placed in batch {
            self.oracle.free(placed.offset).unwrap();
        }
    }

    /// A used range becomes shorter or longer, or gets a gap.
    fn change(&mut self) {
        let Some((placed, size)) = self.victim() else { return };
        let Placed { offset, .. } = placed;
        match self.random.below(3) {
            0 => {
                let new_size = 1 + self.random.below(size);
                if self.heap.shrink(placed, size, new_size).is_none() {
                    self.excused("a tail");
                    return self.live.push((placed, size));
                }
                self.oracle.resize(offset, new_size).unwrap();
                self.live.push((placed, new_size));
            }
            1 => {
                let max = size + self.oracle.free_behind(offset);
                let new_size = match self.random.below(3) {
                    0 => max,
                    1 => size + self.random.below(max - size + 1),
                    _ => max + self.random.below(3),
                };
                let result = self.heap.extend(placed, size, new_size);
                assert_eq!(result, if new_size > max { Err(max) } else { Ok(()) });
                let new_size = if new_size > max { size } else { new_size };
                self.oracle.resize(offset, new_size).unwrap();
                self.live.push((placed, new_size));
            }
            _ => {
                let from = match self.random.once_in(3) {
                    true => 0,
                    false => self.random.below(size),
                };
                let to = match self.random.once_in(3) {
                    true => size,
                    false => from + 1 + self.random.below(size - from),
                };
                let part = offset + from..offset + to;
                let Some(behind) = self.heap.free_part(placed, size, part.clone()) else {
                    self.excused("a gap");
                    return self.live.push((placed, size));
                };
                self.oracle.free_part(offset, part.clone()).unwrap();
                if from > 0 {
                    self.live.push((placed, from));
                }
                assert_eq!(behind.map(|it| it.offset), (to < size).then_some(part.end));
                self.live.extend(behind.map(|behind| (behind, size - to)));
            }
        }
    }

    fn move_end(&mut self) {
        let before = self.heap.capacity();
        let capacity = match self.random.below(4) {
            0 => before,
            1 => (self.oracle.end_of_last().saturating_sub(self.start)).max(1),
            2 => CAPACITY + self.random.below(CAPACITY / 4),
            _ => 1 + self.random.below(CAPACITY + CAPACITY / 4),
        };
        let end_of_last = self.oracle.end_of_last().max(self.start);
        let wrong = SpaceError::WrongDirection { capacity: before, requested: capacity };
        let grown = self.heap.grow(capacity);
        if let Err(SpaceError::TooManyRanges { ranges }) = grown {
            assert_eq!(ranges, self.heap.ranges());
            return self.excused("a longer space");
        }
        assert_eq!(grown, if capacity < before { Err(wrong) } else { Ok(()) });
        // Now the other way: the end is where it should be, or still where it was.
        let now = self.heap.capacity();
        assert_eq!(now, before.max(capacity));
        self.oracle.set_capacity(self.start + now).unwrap();
        let longer = SpaceError::WrongDirection { capacity: now, requested: now + 1 };
        assert_eq!(self.heap.shrink_to(now + 1), Err(longer));
        let in_use = SpaceError::InUse { requested: capacity, end_of_last };
        let fits = self.start + capacity >= end_of_last;
        assert_eq!(self.heap.shrink_to(capacity), if fits { Ok(()) } else { Err(in_use) });
        if fits {
            self.oracle.set_capacity(self.start + capacity).unwrap();
        }
        assert_eq!(self.heap.end_of_last(), end_of_last);
    }

    /// A request that failed for another reason gives back what it took.
    fn give_back(&mut self) {
        let size = self.size();
        let fresh = self.heap.is_fresh();
        let pieces = self.heap.allocate_up_to(size, 3);
        self.heap.give_back(&pieces);
        assert_eq!(self.heap.is_fresh(), fresh);
        let (largest, free) = (self.heap.largest_coalesced(), self.oracle.largest_free());
        // But for the small-object region, which is held back.
        assert!(largest == free, "{largest} of {free} without a coalesce");
    }

    fn step(&mut self) {
        let used = self.heap.capacity() - self.heap.free_bytes();
        if used.abs_diff(self.target) < self.heap.capacity() / 8 || self.random.once_in(40) {
            self.target = self.random.below(self.heap.capacity() * 9 / 8);
        }
        let grows = used < self.target;
        match self.random.below(24) {
            0 | 1 => {
                let (size, align) = (self.size(), self.align());
                self.allocate(size, align);
            }
            2 => self.allocate_several(),
            3 | 4 => self.allocate_scattered(),
            5 => self.allocate_at(),
            6 => self.free_batch(),
            7..10 => self.change(),
            10 => self.move_end(),
            11 => self.give_back(),
            12 => self.reuse(),
            13 => {
                let size = 1 + self.random.below(self.heap.capacity());
                self.allocate(size, 1);
            }
            14.. if grows => {
                let size = self.size();
                self.allocate(size, 1);
            }
            _ => self.free(),
        }
        self.compare();
    }

    /// In a store of one size, the range that was freed is the next one.
    fn reuse(&mut self) {
        let size = self.size();
        self.allocate(size, 1);
        self.free();
        self.allocate(size, 1);
        self.allocate(size, 1);
    }

    /// Compares what can be read without coalescing, and then now and then all of it.
    fn compare(&mut self) {
        let (heap, oracle) = (&mut self.heap, &self.oracle);
        assert_eq!(heap.free_bytes(), oracle.free_bytes());
        assert_eq!(heap.live(), self.live.len() as u64);
        assert!(heap.ranges() <= u64::from(self.max_ranges));
        if self.max_ranges < u32::MAX {
            assert_eq!(heap.max_ranges(), self.max_ranges);
        }
        let (coalesced, largest) = (heap.largest_coalesced(), oracle.largest_free());
        let bound = heap.largest_free_bound(coalesced);
        assert!((coalesced..=bound).contains(&largest), "{largest} in {coalesced} to {bound}");
        if self.random.once_in(2) {
            return;
        }
        heap.check().unwrap();
        assert_eq!(heap.largest_free_bound(largest), largest, "nothing is deferred");
        for &(placed, size) in &self.live {
            assert_eq!(heap.check_used(placed, size), Ok(()));
            assert_eq!(heap.size_of(placed), size);
        }
        let top = heap.ranges.bins().lists().top();
        let hole = top.map(|list| heap.ranges.bins()[heap.ranges.bins().lists().first(list)].node);
        for node in [SENTINEL, NIL - 1].into_iter().chain(hole) {
            assert!(!heap.ranges.is_used(node), "node {node}");
        }
        for (Placed { node, offset }, size) in self.live.iter().copied().take(3) {
            let wrong = Placed { node, offset: offset + 1 };
            assert!(heap.check_used(wrong, size).is_err());
            assert!(heap.check_used(Placed { node, offset }, size + 1).is_err());
        }
        self.compare_reports();
        if self.random.once_in(4) {
            self.cut();
        }
    }

    /// Cuts the heap into shards, which have the same ranges, and leaves it as it is.
    fn cut(&mut self) {
        let starts = self.heap.shard_starts(1 + self.random.below(5) as usize);
        let end = self.oracle.capacity();
        assert!(starts[0] == self.start && starts.is_sorted_by(|a, b| a < b));
        let shards = self.heap.cut(&starts, self.max_ranges);
        let map = self.heap.map();
        let ends = starts[1..].iter().copied().chain([end]);
        for ((mut shard, &start), end) in shards.into_iter().zip(&starts).zip(ends) {
            shard.check().unwrap();
            assert_eq!(shard.limit_of_space(), self.heap.limit());
            let part = |range: &MapRange| {
                let (from, to) = (range.offset.max(start), (range.offset + range.size).min(end));
                (from < to).then(|| MapRange { offset: from, size: to - from, ..*range })
            };
            let expected: Vec<MapRange> = map.iter().filter_map(part).collect();
            assert_eq!(shard.map(), expected);
            for &(placed, size) in &self.live {
                if (start..end).contains(&placed.offset) {
                    assert_eq!(shard.check_used(placed, size), Ok(()));
                    shard.free(placed.node, placed.offset, size);
                }
            }
            shard.check().unwrap();
            assert_eq!((shard.free_bytes(), shard.live()), (end - start, 0));
            assert_eq!(shard.metrics().free_ranges, 1);
        }
        self.heap.check().unwrap();
    }

    /// Returns the free ranges: a boundary divides them, except between segments that are wholly
    /// free.
    fn free_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let space_end = self.oracle.capacity();
        for (start, len, _) in self.oracle.map().into_iter().filter(|&(.., used)| !used) {
            let end = start + len;
            let (mut first, mut last) = (end, end);
            if let Some(boundary) = self.oracle.boundary() {
                first = start.next_multiple_of(boundary).min(end);
                last = if end == space_end { end } else { (end - end % boundary).max(first) };
            }
            let parts = [start..first, first..last, last..end];
            ranges.extend(parts.into_iter().filter(|part| !part.is_empty()));
        }
        ranges
    }

    fn compare_reports(&mut self) {
        let used = |&(placed, size): &(Placed, u64)| (placed.offset, size, true);
        let mut map: Vec<_> = self.live.iter().map(used).collect();
        let free_ranges = self.free_ranges();
        map.extend(free_ranges.iter().map(|range| (range.start, range.end - range.start, false)));
        map.sort_unstable();
        let heap = &mut self.heap;
        let reported = heap.map();
        let plain = |range: &MapRange| (range.offset, range.size, range.used);
        assert_eq!(reported.iter().map(plain).collect::<Vec<_>>(), map);
        let bins = heap.bin_reports();
        assert_eq!(bins, bin_reports(&reported));
        assert_eq!(bins.iter().map(|bin| bin.ranges).sum::<u64>(), free_ranges.len() as u64);
        assert_eq!(bins.iter().map(|bin| bin.bytes).sum::<u64>(), heap.free_bytes());
        let metrics = heap.metrics();
        assert_eq!((metrics.capacity, metrics.free), (heap.capacity(), heap.free_bytes()));
        assert_eq!(metrics.allocated, metrics.capacity - metrics.free);
        assert_eq!(metrics.largest_free, self.oracle.largest_free());
        assert_eq!(metrics.live, self.live.len() as u64);
        assert_eq!(metrics.free_ranges, free_ranges.len() as u64);
        let ends = heap.shard_ends();
        let at = |end: bool| {
            let edge = |range: &&Range<u64>| {
                if end { range.end == ends.end } else { range.start == ends.start }
            };
            let free = free_ranges.iter().find(edge).map_or(0, |range| range.end - range.start);
            if self.oracle.boundary().is_some() { 0 } else { free }
        };
        assert_eq!((ends.start, ends.end), (self.start, self.oracle.capacity()));
        assert_eq!((ends.head, ends.tail), (at(false), at(true)));
    }
}

/// Runs a history of each kind of sizes.
fn run(boundary: Option<u64>, start: u64, max_ranges: u32, steps: usize) {
    let kinds = [Sizes::Bimodal, Sizes::Few, Sizes::Alike, Sizes::Tiny];
    for (seed, sizes) in (0..).zip(kinds) {
        let placement = if seed == 3 { Placement::BestFit } else { Placement::Renewal };
        let mut history = History::new(seed, start, boundary, placement, sizes, max_ranges);
        for _ in 0..steps {
            history.step();
        }
    }
}

const STEPS: usize = 400;

#[test]
fn a_history_agrees_with_the_oracle() {
    run(None, 0, u32::MAX, STEPS);
    run(None, 12_345, u32::MAX, STEPS);
}

#[test]
fn a_history_with_boundaries_agrees_with_the_oracle() {
    run(Some(1 << 17), 0, u32::MAX, STEPS);
    run(Some(100_000), 300_000, u32::MAX, STEPS);
    run(Some(3 << 18), 0, u32::MAX, STEPS);
}

#[test]
fn a_history_with_few_nodes_agrees_with_the_oracle() {
    run(None, 0, 40, STEPS);
    run(Some(100_000), 0, 30, STEPS);
}
