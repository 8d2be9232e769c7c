//! *Scattered*: one request in several ranges.

use std::cmp::Reverse;

use super::heap::{Heap, NODES_PER_CHANGE};
use super::ranges::SizedRange;
use crate::offset::error::AllocError;

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
struct TooShortTogether {
    /// Whether nodes were left for all segments.
    nodes_free: bool,
}

impl Heap {
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
        let spare = u64::from(self.ranges.chain().remaining().saturating_sub(NODES_PER_CHANGE));
        let nodes_free = self.has_free_nodes();
        if nodes_free {
            self.ranges.open_tail();
        }
        let chosen = self.choose(total, max_ranges, if nodes_free { spare } else { 0 });
        let taken = chosen.as_ref().ok().and_then(|choice| self.take_chosen(choice, nodes_free));
        self.ranges.add_tail_to_runs();
        taken.ok_or_else(|| match chosen {
            Err(TooShortTogether { nodes_free: true }) if nodes_free => {
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
    ) -> Result<ScatterPlan, TooShortTogether> {
        let (bins, boundary) = (self.ranges.bins(), self.ranges.boundary());
        let wanted = (total / boundary).min(max_ranges as u64);
        let there = self.ranges.free_segments(wanted.saturating_add(1));
        let too_few = TooShortTogether { nodes_free: there <= segments };
        let mut choice =
            ScatterPlan { segments: wanted.min(there).min(segments), holes: Vec::new(), last: 0 };
        choice.last = total - choice.segments.saturating_mul(boundary.min(total));
        let ranges_left = max_ranges - choice.segments as usize;
        if choice.last == 0 || ranges_left > 0 && choice.segments < there.min(segments) {
            return Ok(choice);
        }
        let mut list = bins.lists().top();
        while let Some(place) = list {
            // A list is short, or all its holes have the same size.
            let alike = bins.lists().is_of_one_size(place);
            let mut sorted = Vec::new();
            if !alike {
                sorted.extend(bins.lists().holes_of(place));
                sorted.sort_by_key(|&id| Reverse(bins[id].size));
            }
            let of_list = alike.then(|| bins.lists().holes_of(place)).into_iter().flatten();
            for id in of_list.chain(sorted) {
                if choice.holes.len() == ranges_left {
                    return Err(too_few);
                }
                if bins[id].size >= choice.last {
                    return Ok(choice);
                }
                choice.holes.push(id);
                choice.last -= bins[id].size;
            }
            list = bins.lists().below(place);
        }
        Err(too_few)
    }

    /// Takes the chosen ranges. Returns `None` and changes nothing if no node is left for the
    /// remainder of the last range.
    fn take_chosen(&mut self, choice: &ScatterPlan, nodes_free: bool) -> Option<Vec<SizedRange>> {
        let mut pieces = Vec::new();
        for _ in 0..choice.segments {
            let Some(id) = self.ranges.open_next() else { break };
            pieces.push(SizedRange {
                placed: self.ranges.take_whole(id),
                size: self.ranges.boundary(),
            });
        }
        for &id in &choice.holes {
            let size = self.ranges.bins()[id].size;
            pieces.push(SizedRange { placed: self.ranges.take_whole(id), size });
        }
        let size = choice.last;
        if size > 0 {
            let last = match nodes_free {
                true => self.fit_or_open(size),
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
}
