//! *Check*: the invariants, numbered, and a check of exactly those.
//!
//! 1. The chain is a ring through the sentinel; links are mutual; it contains all nodes in use.
//! 2. The ranges tile the space, `capacity` bytes, in address order; none is empty.
//! 3. A node is free iff a hole names it, and the two agree on where the range lies.
//! 4. Free neighbours are coalesced, unless a boundary or a hole held back separates them.
//! 5. A hole is in the bin of its size, or it is a run or the small-object region; lists and
//!    bitmaps agree.
//! 6. `allocated` and `live` are the sums over the chain.
//! 7. The greatest binned size is exact where it is known.
//! 8. No used range, and no binned hole, crosses a boundary or is a wholly free segment. Runs begin
//!    at a boundary and end at one; the wilderness ends the space. No two runs touch.
//! 9. The lock-free hint is not below the largest free range (checked with the hint, in
//!    `space_core.rs`).

use std::ops::Range;

use super::super::chunked_table::NIL;
use super::chain::SENTINEL;
use super::range_table::RangeTable;
use crate::offset::error::CheckError;

impl RangeTable {
    /// Checks invariants 1 to 8; nothing may be deferred. O(ranges + bins).
    pub(crate) fn check(&self) -> Result<(), CheckError> {
        let mut walk = ChainWalk::new(self);
        while walk.step()? {}
        walk.check_sums()?;
        walk.check_bins()
    }
}

fn broken<T>(invariant: u32, what: String) -> Result<T, CheckError> {
    Err(CheckError { invariant, what })
}

/// A walk along the chain, with the sums over the ranges passed so far.
struct ChainWalk<'a> {
    ranges: &'a RangeTable,
    /// The last range passed, and where it ends.
    node: u32,
    at: u64,
    /// Its hole, if it is free.
    left: Option<u32>,
    /// Nodes passed, the sentinel among them.
    seen: u32,
    allocated: u64,
    live: u64,
    free_ranges: u32,
    largest: u64,
    /// Runs without the wilderness, and the end of the last run.
    runs: u32,
    run_end: u64,
}

impl<'a> ChainWalk<'a> {
    fn new(ranges: &'a RangeTable) -> Self {
        ChainWalk {
            ranges,
            node: SENTINEL,
            at: ranges.start(),
            left: None,
            seen: 0,
            allocated: 0,
            live: 0,
            free_ranges: 0,
            largest: 0,
            runs: 0,
            run_end: 0,
        }
    }

    /// Passes one range; returns whether it was not the sentinel.
    fn step(&mut self) -> Result<bool, CheckError> {
        let (ranges, node) = (self.ranges, self.node);
        let next = ranges.chain[node].next;
        if !ranges.chain.contains(next) || ranges.chain[next].prev != node {
            return broken(
                1,
                format!("node {node} is followed by {next}, which does not link back"),
            );
        }
        self.seen += 1;
        if self.seen > ranges.chain.live() {
            return broken(1, format!("the ring has more than {} nodes", ranges.chain.live()));
        }
        self.node = next;
        if next == SENTINEL {
            return Ok(false);
        }
        let range = ranges.start_of(next)..ranges.start_of(ranges.chain[next].next);
        if range.start != self.at || range.is_empty() {
            let at = self.at;
            return broken(
                2,
                format!("node {next} is {range:?}, the range before it ends at {at}"),
            );
        }
        self.at = range.end;
        match ranges.chain[next].hole() {
            None => self.pass_used(range)?,
            Some(id) => self.pass_free(next, id, range)?,
        }
        Ok(true)
    }

    fn pass_used(&mut self, range: Range<u64>) -> Result<(), CheckError> {
        self.allocated += range.end - range.start;
        self.live += 1;
        self.left = None;
        if self.crosses(&range) {
            let boundary = self.ranges.boundary();
            return broken(8, format!("{range:?} crosses a multiple of {boundary}"));
        }
        Ok(())
    }

    fn pass_free(&mut self, node: u32, id: u32, range: Range<u64>) -> Result<(), CheckError> {
        self.free_ranges += 1;
        let ranges = self.ranges;
        if !ranges.bins.contains(id) {
            return broken(3, format!("node {node} names hole {id}, which does not exist"));
        }
        let hole = &ranges.bins[id];
        if hole.node != node || hole.end() != range.end {
            return broken(3, format!("node {node} is {range:?}, its hole {id} says {hole:?}"));
        }
        let held = ranges.runs.contain(&ranges.bins, id) || id == ranges.small_region;
        if held == hole.is_binned() {
            let binned = hole.is_binned();
            return broken(5, format!("hole {id}: binned {binned}, held back {held}"));
        }
        if hole.is_binned() {
            self.largest = self.largest.max(hole.size);
            if self.crosses(&range) {
                return broken(8, format!("hole {id}, {range:?}, crosses a boundary"));
            }
        }
        self.check_run(id, &range)?;
        let apart = held || ranges.is_edge(range.start);
        if self.left.is_some_and(|left| !apart && ranges.bins[left].is_binned()) {
            let start = range.start;
            return broken(4, format!("free ranges meet at {start} and are not coalesced"));
        }
        self.left = Some(id);
        Ok(())
    }

    /// Checks that a free range is a run iff it is wholly free segments.
    fn check_run(&mut self, id: u32, range: &Range<u64>) -> Result<(), CheckError> {
        let ranges = self.ranges;
        let run = ranges.runs.contain(&ranges.bins, id);
        let last = range.end == ranges.end();
        let segment = ranges.has_boundary()
            && ranges.is_edge(range.start)
            && (ranges.is_edge(range.end) || last);
        let wilderness = id == ranges.runs.wilderness;
        if run != segment || wilderness != (run && last) {
            let hole = &ranges.bins[id];
            return broken(
                8,
                format!("hole {id}, {range:?}: segment {segment}, run {run}, {hole:?}"),
            );
        }
        if run {
            self.runs += u32::from(!wilderness);
            if range.start > 0 && range.start == self.run_end {
                return broken(8, format!("two runs meet at {}", range.start));
            }
            self.run_end = range.end;
        }
        Ok(())
    }

    fn crosses(&self, range: &Range<u64>) -> bool {
        let boundary = self.ranges.boundary();
        self.ranges.has_boundary() && range.start / boundary != (range.end - 1) / boundary
    }

    /// Checks the sums, after the last step.
    fn check_sums(&self) -> Result<(), CheckError> {
        let ranges = self.ranges;
        if self.at != ranges.end() {
            let (at, end) = (self.at, ranges.end());
            return broken(2, format!("the last range ends at {at}, the space at {end}"));
        }
        let (seen, nodes) = (self.seen, ranges.chain.live());
        if seen != nodes {
            return broken(1, format!("{seen} nodes in the ring, {nodes} in use"));
        }
        let (free_ranges, holes) = (self.free_ranges, ranges.bins.live());
        if free_ranges != holes {
            return broken(3, format!("{free_ranges} free nodes, {holes} holes"));
        }
        let (allocated, live) = (self.allocated, self.live);
        if (allocated, live) != (ranges.allocated, ranges.live) {
            let counted = (ranges.live, ranges.allocated);
            return broken(
                6,
                format!(
                    "{live} used ranges of {allocated} bytes, counted are {} of {}",
                    counted.0, counted.1
                ),
            );
        }
        Ok(())
    }

    /// Checks the bins and the holes held back, after the last step.
    fn check_bins(&self) -> Result<(), CheckError> {
        let (ranges, runs) = (self.ranges, self.runs);
        let binned = ranges.bins.check().or_else(|what| broken(5, what))?;
        let listed = ranges.runs.listed(&ranges.bins).take(runs as usize + 1).count() as u32;
        if listed != runs {
            return broken(5, format!("{runs} runs, {listed} of them listed"));
        }
        let held =
            runs + u32::from(ranges.runs.wilderness != NIL) + u32::from(ranges.small_region != NIL);
        if binned + held != self.free_ranges {
            let free_ranges = self.free_ranges;
            return broken(
                5,
                format!("{binned} holes binned, {held} held back, {free_ranges} free ranges"),
            );
        }
        let largest = self.largest;
        match ranges.bins.largest_if_known() {
            Some(known) if known != largest => {
                broken(7, format!("largest is {largest}, kept as {known}"))
            }
            _ => Ok(()),
        }
    }
}
