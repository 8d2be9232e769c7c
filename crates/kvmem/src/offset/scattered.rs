//! One request in several ranges, and several requests in one step.

use super::core::refusal;
use super::error::AllocError;
use super::heap::{Grant, Heap};
use super::placement::End;

/// A granted range with its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) grant: Grant,
    pub(crate) size: u64,
}

impl Heap {
    /// Grants `n` ranges of `size` bytes each, or none.
    pub(crate) fn allocate_batch(&mut self, size: u64, n: usize) -> Result<Vec<Piece>, AllocError> {
        let bytes = u128::from(size) * n as u128;
        if bytes > u128::from(self.free_bytes()) {
            return Err(refusal(self, size));
        }
        if n as u64 > self.grants_left() {
            return Err(AllocError::BooksFull { ranges: self.ranges() });
        }
        self.grant_times(size, n, Self::allocate).or_else(|_| {
            // A nursery in the way may have split room for one more. Without it the number of ranges that fit is
            // exact, for each is cut from an end of its hole.
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
                    return Err(full.unwrap_or_else(|| refusal(self, size)));
                }
            }
        }
        Ok(pieces)
    }

    /// The refusal, if `size` bytes cannot be granted only because the books are full.
    fn is_full_for(&mut self, size: u64) -> Option<AllocError> {
        (size <= self.largest_free() && !self.has_names())
            .then(|| AllocError::BooksFull { ranges: self.ranges() })
    }

    /// Grants `size` bytes without a nursery. `None`: no room, or the books are full.
    fn allocate_in_bins(&mut self, size: u64) -> Option<Grant> {
        if !self.has_names() {
            return None;
        }
        self.fit(size).or_else(|| self.open_segment(size).then(|| self.fit(size)).flatten())
    }

    /// Grants `total` ≥ 1 bytes in at most `max_ranges` ≥ 1 ranges, or nothing.
    ///
    /// One range if there is one. Otherwise the longest free ranges are used up whole, for they leave nothing
    /// behind, until what is left fits into one.
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
        self.close_nursery();
        let mut pieces = Vec::new();
        let mut rest = total;
        while rest <= self.free_bytes() && pieces.len() < max_ranges {
            let largest = self.bins.largest();
            if largest < rest && self.has_names() && self.open_segment(largest + 1) {
                continue;
            }
            if largest >= rest {
                let last = if self.has_names() { self.fit(rest) } else { self.fit_whole(rest, 1) };
                let Some(grant) = last else { break };
                pieces.push(Piece { grant, size: rest });
                return Ok(pieces);
            }
            let Some(id) = self.bins.largest_hole() else { break };
            let grant = self.take(id, largest, End::Low);
            pieces.push(Piece { grant, size: largest });
            rest -= largest;
        }
        // Asked before the pieces are given back, for that makes room in the books.
        let full = !self.has_names();
        let ranges = self.ranges();
        self.give_back(&pieces);
        let (limit, free) = (self.capacity(), self.free_bytes());
        Err(match total {
            _ if total > limit => AllocError::TooLarge { asked: total, limit },
            _ if total <= free && full => AllocError::BooksFull { ranges },
            _ => AllocError::NoRoom { asked: total, free, largest_free: self.largest_free() },
        })
    }

    /// Takes back the pieces of a request that failed: the space is as it was before, its order included.
    pub(crate) fn give_back(&mut self, pieces: &[Piece]) {
        let fresh = self.fresh;
        for piece in pieces {
            self.free(piece.grant.node, piece.grant.offset, piece.size);
        }
        self.settle();
        self.fresh = fresh;
    }
}
