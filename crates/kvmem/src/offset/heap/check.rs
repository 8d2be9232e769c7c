//! The invariants, numbered, and a check of exactly those.
//!
//! 1. The chain is a ring through the sentinel; links are mutual; it contains all nodes in use.
//! 2. The ranges tile `[0, capacity)` in address order; none is empty.
//! 3. A node is free iff a hole names it, and the two agree on where the range lies.
//! 4. Free neighbours are coalesced, unless a boundary or a hole held back separates them.
//! 5. A hole is in the bin of its size, or it is a run or the small-object region; lists and
//!    bitmaps agree.
//! 6. `allocated` and `live` are the sums over the chain.
//! 7. The greatest binned size is exact where it is known.
//! 8. No used range, and no binned hole, crosses a boundary or is a wholly free segment. Runs begin
//!    at a boundary and end at one; the wilderness ends the space. No two runs touch.
//! 9. The lock-free hint is not below the largest free range (checked beside the hint, in
//!    `core.rs`).

use super::heap::{Heap, NO_BOUNDARY, Placed, SENTINEL};
use super::table::NIL;
use crate::offset::error::CheckError;

impl Heap {
    /// Checks that a range is used and has this length.
    #[cfg(not(loom))]
    pub(crate) fn check_used(&self, placed: Placed, size: u64) -> Result<(), CheckError> {
        let Placed { node, offset } = placed;
        let used =
            node != SENTINEL && self.nodes.contains(node) && self.nodes[node].hole().is_none();
        if used && self.range_of(node) == (offset..offset + size) {
            return Ok(());
        }
        let what = format!(
            "node {node} is kept as [{offset}, {}), which is no range in use",
            offset + size
        );
        Err(CheckError { invariant: 3, what })
    }

    /// Checks invariants 1 to 8. O(ranges + bins).
    pub(crate) fn check(&mut self) -> Result<(), CheckError> {
        self.coalesce();
        let broken = |invariant, what: String| Err(CheckError { invariant, what });
        let (mut node, mut at, mut seen) = (SENTINEL, 0, 0);
        let (mut allocated, mut live, mut free_ranges, mut largest) = (0, 0, 0, 0);
        let (mut runs, mut run_end) = (0, 0);
        let mut left: Option<u32> = None;
        loop {
            let next = self.nodes[node].next;
            if !self.nodes.contains(next) || self.nodes[next].prev != node {
                return broken(
                    1,
                    format!("node {node} is followed by {next}, which does not link back"),
                );
            }
            seen += 1;
            if seen > self.nodes.live() {
                return broken(1, format!("the ring has more than {} nodes", self.nodes.live()));
            }
            node = next;
            if node == SENTINEL {
                break;
            }
            let (start, end) = (self.start_of(node), self.start_of(self.nodes[node].next));
            if start != at || end <= start {
                return broken(
                    2,
                    format!("node {node} is [{start}, {end}), the range before it ends at {at}"),
                );
            }
            let crosses =
                self.boundary != NO_BOUNDARY && start / self.boundary != (end - 1) / self.boundary;
            match self.nodes[node].hole() {
                None => {
                    allocated += end - start;
                    live += 1;
                    if crosses {
                        return broken(
                            8,
                            format!("[{start}, {end}) crosses a multiple of {}", self.boundary),
                        );
                    }
                    left = None;
                }
                Some(id) => {
                    free_ranges += 1;
                    if !self.bins.holes.contains(id) {
                        return broken(
                            3,
                            format!("node {node} names hole {id}, which does not exist"),
                        );
                    }
                    let hole = &self.bins.holes[id];
                    if hole.node != node || hole.end() != end {
                        return broken(
                            3,
                            format!("node {node} is [{start}, {end}), its hole {id} says {hole:?}"),
                        );
                    }
                    let run = id == self.wilderness || hole.is_run();
                    let held = run || id == self.small_region;
                    if held == hole.is_binned() {
                        return broken(
                            5,
                            format!("hole {id}: binned {}, held back {held}", hole.is_binned()),
                        );
                    }
                    if hole.is_binned() {
                        largest = largest.max(hole.size);
                        if crosses {
                            return broken(
                                8,
                                format!("hole {id}, [{start}, {end}), crosses a boundary"),
                            );
                        }
                    }
                    let segment = self.boundary != NO_BOUNDARY
                        && start.is_multiple_of(self.boundary)
                        && (end.is_multiple_of(self.boundary) || end == self.capacity);
                    if run != segment || (id == self.wilderness) != (run && end == self.capacity) {
                        return broken(
                            8,
                            format!(
                                "hole {id}, [{start}, {end}): segment {segment}, run {run}, \
                                 {hole:?}"
                            ),
                        );
                    }
                    if run {
                        runs += u32::from(id != self.wilderness);
                        if start > 0 && start == run_end {
                            return broken(8, format!("two runs meet at {start}"));
                        }
                        run_end = end;
                    }
                    let at_edge =
                        self.boundary != NO_BOUNDARY && start.is_multiple_of(self.boundary);
                    if let Some(left) = left
                        && !at_edge
                        && !held
                        && self.bins.holes[left].is_binned()
                    {
                        return broken(
                            4,
                            format!("free ranges meet at {start} and are not coalesced"),
                        );
                    }
                    left = Some(id);
                }
            }
            at = end;
        }
        if at != self.capacity {
            return broken(
                2,
                format!("the last range ends at {at}, the space at {}", self.capacity),
            );
        }
        if seen != self.nodes.live() {
            return broken(1, format!("{seen} nodes in the ring, {} in use", self.nodes.live()));
        }
        if free_ranges != self.bins.holes.live() {
            return broken(
                3,
                format!("{free_ranges} free nodes, {} holes", self.bins.holes.live()),
            );
        }
        if (allocated, live) != (self.allocated, self.live) {
            return broken(
                6,
                format!(
                    "{live} used ranges of {allocated} bytes, counted are {} of {}",
                    self.live, self.allocated
                ),
            );
        }
        let binned = self.bins.check().or_else(|what| broken(5, what).map(|()| 0))?;
        let listed = self.bins.runs().take(runs as usize + 1).count() as u32;
        if listed != runs {
            return broken(5, format!("{runs} runs, {listed} of them listed"));
        }
        let held = runs + u32::from(self.wilderness != NIL) + u32::from(self.small_region != NIL);
        if binned + held != free_ranges {
            return broken(
                5,
                format!("{binned} holes binned, {held} held back, {free_ranges} free ranges"),
            );
        }
        match self.bins.largest_if_known() {
            Some(known) if known != largest => {
                broken(7, format!("largest is {largest}, kept as {known}"))
            }
            _ => Ok(()),
        }
    }
}
