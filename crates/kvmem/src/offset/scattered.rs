//! One request in several ranges, and several requests in one step.

use std::cmp::Reverse;

use super::core::refusal;
use super::error::AllocError;
use super::heap::{Grant, Heap, NODES_A_CHANGE};

/// A granted range with its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) grant: Grant,
    pub(crate) size: u64,
}

/// What a scattered request will take.
struct Choice {
    /// Whole segments of runs.
    segments: u64,
    /// Whole holes.
    holes: Vec<u32>,
    /// What is left for the last range, in bytes.
    last: u64,
}

/// The longest free ranges are too short together.
struct TooFew {
    /// Although there were names for all segments.
    names: bool,
}

impl Heap {
    /// Grants `n` ranges of `size` bytes each, or none.
    pub(crate) fn allocate_batch(&mut self, size: u64, n: usize) -> Result<Vec<Piece>, AllocError> {
        let bytes = u128::from(size) * n as u128;
        if bytes > u128::from(self.free_bytes()) {
            return Err(self.refuse_batch(size, n));
        }
        if n as u64 > self.grants_left() {
            return Err(AllocError::TooManyRanges { ranges: self.ranges() });
        }
        self.grant_times(size, n, Self::allocate).or_else(|_| {
            // A nursery in the way may have split room for one more. Without it the number of
            // ranges that fit is exact, for each is cut from an end of its hole.
            self.close_nursery();
            self.grant_times(size, n, Self::allocate_in_bins)
        })
    }

    fn grant_times(
        &mut self,
        size: u64,
        n: usize,
        grant: impl Fn(&mut Self, u64) -> Option<Grant>,
    ) -> Result<Vec<Piece>, AllocError> {
        let mut pieces = Vec::new();
        for _ in 0..n {
            match grant(self, size) {
                Some(grant) => pieces.push(Piece { grant, size }),
                None => {
                    let full = self.is_full_for(size);
                    self.give_back(&pieces);
                    return Err(full.unwrap_or_else(|| self.refuse_batch(size, n)));
                }
            }
        }
        Ok(pieces)
    }

    /// Why `n` ranges of `size` bytes cannot be granted: in all, that is.
    fn refuse_batch(&mut self, size: u64, n: usize) -> AllocError {
        refusal(self, size).of_batch(size, n)
    }

    /// The refusal, if `size` bytes cannot be granted only because the books are full.
    fn is_full_for(&mut self, size: u64) -> Option<AllocError> {
        (size <= self.largest_free() && !self.has_names())
            .then(|| AllocError::TooManyRanges { ranges: self.ranges() })
    }

    /// Grants `size` bytes without a nursery. `None`: no room, or the books are full.
    fn allocate_in_bins(&mut self, size: u64) -> Option<Grant> {
        if !self.has_names() {
            return None;
        }
        self.fit(size).or_else(|| self.open_segment(size).then(|| self.fit(size)).flatten())
    }

    /// Grants `total` ≥ 1 bytes in at most `max_ranges` ≥ 1 ranges, or nothing. O(ranges granted),
    /// or `max_ranges`.
    ///
    /// One range if there is one. Otherwise the longest free ranges are used up whole, for they
    /// leave nothing behind, until what is left fits into one. They are chosen before any is
    /// taken.
    pub(crate) fn allocate_scattered(
        &mut self,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<Piece>, AllocError> {
        if total <= self.limit()
            && let Some(grant) = self.allocate(total)
        {
            return Ok(vec![Piece { grant, size: total }]);
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
        self.close_nursery();
        let ranges = self.ranges();
        let spare = u64::from(self.nodes.left().saturating_sub(NODES_A_CHANGE));
        let names = self.has_names();
        if names {
            self.open_tail();
        }
        let chosen = self.choose(total, max_ranges, if names { spare } else { 0 });
        let granted = chosen.as_ref().ok().and_then(|choice| self.take_chosen(choice, names));
        self.stow_tail();
        granted.ok_or_else(|| match chosen {
            Err(TooFew { names: true }) if names => {
                AllocError::OutOfSpace { requested: total, free, largest_free: self.largest_free() }
            }
            _ => AllocError::TooManyRanges { ranges },
        })
    }

    /// Chooses the longest free ranges, up to `segments` of them from runs. They are not touched.
    fn choose(&self, total: u64, max_ranges: usize, segments: u64) -> Result<Choice, TooFew> {
        let wanted = (total / self.boundary).min(max_ranges as u64);
        let there = self.free_segments(wanted.saturating_add(1));
        let too_few = TooFew { names: there <= segments };
        let mut choice =
            Choice { segments: wanted.min(there).min(segments), holes: Vec::new(), last: 0 };
        choice.last = total - choice.segments.saturating_mul(self.boundary.min(total));
        let ranges_left = max_ranges - choice.segments as usize;
        if choice.last == 0 || ranges_left > 0 && choice.segments < there.min(segments) {
            return Ok(choice);
        }
        let mut list = self.bins.top();
        while let Some(place) = list {
            let holes = &self.bins.holes;
            // A list is short, or all its holes are alike.
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

    /// Takes what was chosen. `None`: there is no name for the remainder of the last range, and
    /// nothing is changed.
    fn take_chosen(&mut self, choice: &Choice, names: bool) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        for _ in 0..choice.segments {
            let Some(id) = self.open_next() else { break };
            pieces.push(Piece { grant: self.take_whole(id), size: self.boundary });
        }
        for &id in &choice.holes {
            let size = self.bins.holes[id].size;
            pieces.push(Piece { grant: self.take_whole(id), size });
        }
        let size = choice.last;
        if size > 0 {
            let last = match names {
                true => self
                    .fit(size)
                    .or_else(|| self.open_segment(size).then(|| self.fit(size)).flatten()),
                false => self.fit_whole(size, 1),
            };
            let Some(grant) = last else {
                self.give_back(&pieces);
                return None;
            };
            pieces.push(Piece { grant, size });
        }
        Some(pieces)
    }

    /// Takes back the pieces of a request that failed: the space is as it was before, its order
    /// included.
    pub(crate) fn give_back(&mut self, pieces: &[Piece]) {
        let fresh = self.fresh;
        for piece in pieces {
            self.free(piece.grant.node, piece.grant.offset, piece.size);
        }
        self.settle();
        self.fresh = fresh;
    }
}
