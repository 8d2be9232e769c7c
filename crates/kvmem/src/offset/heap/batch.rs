//! *Batch*: several ranges of one size in one call: all of them or none, or as many as fit.

use super::heap::Heap;
use super::ranges::{Placed, SizedRange};
use crate::offset::error::AllocError;

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
        let too_many = |heap: &Self| n as u64 > heap.ranges.max_more_ranges();
        if too_many(self) {
            // The nodes of deferred ranges count as used.
            self.coalesce();
            if too_many(self) {
                return Err(AllocError::TooManyRanges { ranges: self.ranges() });
            }
        }
        self.place_times(size, n, Self::allocate).or_else(|_| {
            // A small-object region may have divided room for one more. Without it the number of
            // ranges that fit is exact, because each is cut from an end of its hole.
            self.close_region();
            self.place_times(size, n, Self::allocate_in_bins)
        })
    }

    /// Allocates `n` ranges of `size` ≥ 1 bytes each, or as many as fit if those are fewer.
    pub(crate) fn allocate_up_to(&mut self, size: u64, n: usize) -> Vec<SizedRange> {
        let pieces = self.place_up_to(size, n, Self::allocate);
        if pieces.len() == n {
            return pieces;
        }
        // Without the small-object region the number of ranges that fit is exact, as in
        // `allocate_batch`.
        self.give_back(&pieces);
        self.close_region();
        self.place_up_to(size, n, Self::allocate_in_bins)
    }

    fn place_times(
        &mut self,
        size: u64,
        n: usize,
        place: impl Fn(&mut Self, u64) -> Option<Placed>,
    ) -> Result<Vec<SizedRange>, AllocError> {
        let pieces = self.place_up_to(size, n, place);
        if pieces.len() == n {
            return Ok(pieces);
        }
        let full = self.is_full_for(size);
        self.give_back(&pieces);
        Err(full.unwrap_or_else(|| self.batch_error(size, n)))
    }

    fn place_up_to(
        &mut self,
        size: u64,
        n: usize,
        place: impl Fn(&mut Self, u64) -> Option<Placed>,
    ) -> Vec<SizedRange> {
        let placed = (0..n).map_while(|_| place(self, size));
        placed.map(|placed| SizedRange { placed, size }).collect()
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

    /// Allocates `size` bytes without a small-object region. Returns `None` if no range is long
    /// enough or no node is left.
    fn allocate_in_bins(&mut self, size: u64) -> Option<Placed> {
        if self.has_free_nodes() { self.fit_or_open(size) } else { None }
    }
}
