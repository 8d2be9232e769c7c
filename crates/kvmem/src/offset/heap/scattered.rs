//! One request in several ranges, and several requests in one call.

use std::cmp::Reverse;

use super::heap::{Heap, NODES_PER_CHANGE, Placed};
use crate::offset::error::AllocError;

/// An allocated range with its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizedRange {
    pub(crate) placed: Placed,
    pub(crate) size: u64,
}

/// The ranges that a scattered request will take.
struct ScatterPlan {
    /// Whole segments of runs.
    segments: u64,
    /// Whole holes.
    holes: Vec<u32>,
    /// Bytes of the last range.
    last: u64,
}

/// The longest free ranges are too short together.
struct NotEnough {
    /// Whether nodes were left for all segments.
    nodes_free: bool,
}

impl Heap {
    /// Allocates `n` ranges of `size` bytes each, or none.
    pub(crate) fn allocate_batch(
        &mut self,
        size: u64,
        n: usize,
    ) -> Result<Vec<SizedRange>, AllocError> {
        let bytes = u128::from(size) * n as u128;
        if bytes > u128::from(self.free_bytes()) {
            return Err(self.batch_error(size, n));
        }
        if n as u64 > self.max_more_ranges() {
            return Err(AllocError::TooManyRanges { ranges: self.ranges() });
        }
        self.place_times(size, n, Self::allocate).or_else(|_| {
            // A small-object region may have divided room for one more. Without it the number of
            // ranges that fit is exact, because each is cut from an end of its hole.
            self.close_region();
            self.place_times(size, n, Self::allocate_in_bins)
        })
    }

    fn place_times(
        &mut self,
        size: u64,
        n: usize,
        placed: impl Fn(&mut Self, u64) -> Option<Placed>,
    ) -> Result<Vec<SizedRange>, AllocError> {
        let mut pieces = Vec::new();
        for _ in 0..n {
            match placed(self, size) {
                Some(placed) => pieces.push(SizedRange { placed, size }),
                None => {
                    let full = self.is_full_for(size);
                    self.give_back(&pieces);
                    return Err(full.unwrap_or_else(|| self.batch_error(size, n)));
                }
            }
        }
        Ok(pieces)
    }

    /// Returns the error of a batch of `n` ranges of `size` bytes.
    fn batch_error(&mut self, size: u64, n: usize) -> AllocError {
        self.allocation_error(size).of_batch(size, n)
    }

    /// Returns an error if `size` bytes cannot be allocated only because no node is left.
    fn is_full_for(&mut self, size: u64) -> Option<AllocError> {
        (size <= self.largest_free() && !self.has_free_nodes())
            .then(|| AllocError::TooManyRanges { ranges: self.ranges() })
    }

    /// Allocates `size` bytes without a small-object region. Returns `None` if no room or no node
    /// is left.
    fn allocate_in_bins(&mut self, size: u64) -> Option<Placed> {
        if !self.has_free_nodes() {
            return None;
        }
        self.fit(size).or_else(|| self.open_segment(size).then(|| self.fit(size)).flatten())
    }

    /// Allocates `total` ≥ 1 bytes in at most `max_ranges` ≥ 1 ranges, or nothing. O(ranges
    /// returned), or O(`max_ranges`) on failure.
    ///
    /// Takes one range if one fits. Otherwise it takes the longest free ranges whole, which leaves
    /// no remainders, until the rest fits into one. All are chosen before any is taken.
    pub(crate) fn allocate_scattered(
        &mut self,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<SizedRange>, AllocError> {
        if total <= self.limit()
            && let Some(placed) = self.allocate(total)
        {
            return Ok(vec![SizedRange { placed, size: total }]);
        }
        let (limit, free) = (self.capacity(), self.free_bytes());
        if total > free {
            return Err(match total {
                _ if total > limit => AllocError::TooLarge { requested: total, limit },
                _ => AllocError::OutOfSpace {
                    requested: total,
                    free,
                    largest_free: self.largest_free(),
                },
            });
        }
        self.close_region();
        let ranges = self.ranges();
        let spare = u64::from(self.nodes.remaining().saturating_sub(NODES_PER_CHANGE));
        let nodes_free = self.has_free_nodes();
        if nodes_free {
            self.open_tail();
        }
        let chosen = self.choose(total, max_ranges, if nodes_free { spare } else { 0 });
        let taken = chosen.as_ref().ok().and_then(|choice| self.take_chosen(choice, nodes_free));
        self.add_tail_to_runs();
        taken.ok_or_else(|| match chosen {
            Err(NotEnough { nodes_free: true }) if nodes_free => {
                AllocError::OutOfSpace { requested: total, free, largest_free: self.largest_free() }
            }
            _ => AllocError::TooManyRanges { ranges },
        })
    }

    /// Chooses the longest free ranges, up to `segments` of them from runs, without changing them.
    fn choose(
        &self,
        total: u64,
        max_ranges: usize,
        segments: u64,
    ) -> Result<ScatterPlan, NotEnough> {
        let wanted = (total / self.boundary).min(max_ranges as u64);
        let there = self.free_segments(wanted.saturating_add(1));
        let too_few = NotEnough { nodes_free: there <= segments };
        let mut choice =
            ScatterPlan { segments: wanted.min(there).min(segments), holes: Vec::new(), last: 0 };
        choice.last = total - choice.segments.saturating_mul(self.boundary.min(total));
        let ranges_left = max_ranges - choice.segments as usize;
        if choice.last == 0 || ranges_left > 0 && choice.segments < there.min(segments) {
            return Ok(choice);
        }
        let mut list = self.bins.top();
        while let Some(place) = list {
            let holes = &self.bins.holes;
            // A list is short, or all its holes have the same size.
            let alike = self.bins.is_of_one_size(place);
            let mut sorted = Vec::new();
            if !alike {
                sorted.extend(self.bins.holes_of(place));
                sorted.sort_by_key(|&id| Reverse(holes[id].size));
            }
            let of_list = alike.then(|| self.bins.holes_of(place)).into_iter().flatten();
            for id in of_list.chain(sorted) {
                if choice.holes.len() == ranges_left {
                    return Err(too_few);
                }
                if holes[id].size >= choice.last {
                    return Ok(choice);
                }
                choice.holes.push(id);
                choice.last -= holes[id].size;
            }
            list = self.bins.below(place);
        }
        Err(too_few)
    }

    /// Takes the chosen ranges. Returns `None` and changes nothing if no node is left for the
    /// remainder of the last range.
    fn take_chosen(&mut self, choice: &ScatterPlan, nodes_free: bool) -> Option<Vec<SizedRange>> {
        let mut pieces = Vec::new();
        for _ in 0..choice.segments {
            let Some(id) = self.open_next() else { break };
            pieces.push(SizedRange { placed: self.take_whole(id), size: self.boundary });
        }
        for &id in &choice.holes {
            let size = self.bins.holes[id].size;
            pieces.push(SizedRange { placed: self.take_whole(id), size });
        }
        let size = choice.last;
        if size > 0 {
            let last = match nodes_free {
                true => self
                    .fit(size)
                    .or_else(|| self.open_segment(size).then(|| self.fit(size)).flatten()),
                false => self.fit_whole(size, 1),
            };
            let Some(placed) = last else {
                self.give_back(&pieces);
                return None;
            };
            pieces.push(SizedRange { placed, size });
        }
        Some(pieces)
    }

    /// Frees the ranges of a request that failed. The space is as before, including its order.
    pub(crate) fn give_back(&mut self, pieces: &[SizedRange]) {
        let fresh = self.fresh;
        for piece in pieces {
            self.free(piece.placed.node, piece.placed.offset, piece.size);
        }
        self.coalesce();
        self.fresh = fresh;
    }
}
