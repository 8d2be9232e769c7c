//! An oracle of intervals: the correct state of a space after a sequence of operations.
//!
//! The model is simple enough to be correct by inspection: used ranges and free ranges in ordered
//! maps; no bins, no placement, no policy. It does not decide *where* an allocation goes. The
//! caller reports where it went. The oracle rejects what no allocator may do (overlap, leave the
//! space, cross a boundary) and answers the questions on which all correct allocators without
//! rounding agree: how many bytes are free, how long the longest free range is, whether a request
//! fits.
//!
//! Free ranges are always coalesced, across boundaries too. A boundary divides a free range into
//! *pieces*; an allocation must be within one piece. There may be 2^63 pieces, so they are counted,
//! not listed:
//!
//! ```text
//! boundaries  0        B        2B       3B       4B
//!             ├────────┼────────┼────────┼────────┼──
//! free range        ├──┊────────┊────────┊────┤
//! pieces            head  whole × 2        tail
//! ```
//!
//! Every change is O(log ranges). The queries are O(log ranges) too, unless noted otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use self::violation::ViolationError;
use crate::modular::first_in;

mod violation;

/// A segment of a space: offset and length in bytes, and whether it is in use.
pub type Segment = (u64, u64, bool);

/// Pieces of one length: the length in bytes, and their number.
type Pieces = (u64, u64);

/// The ranges of a space; see the [module](self).
#[derive(Clone, Debug)]
pub struct Oracle {
    capacity: u64,
    boundary: Option<u64>,
    /// Offset → length.
    used: BTreeMap<u64, u64>,
    /// Offset → length; no two are adjacent.
    free: BTreeMap<u64, u64>,
    /// (length, offset) of the free ranges.
    free_by_len: BTreeSet<(u64, u64)>,
    allocated: u64,
}

impl Oracle {
    /// Creates an empty space.
    #[must_use]
    pub fn new(capacity: u64, boundary: Option<u64>) -> Self {
        assert!(capacity > 0 && boundary != Some(0), "an empty space: {capacity}, {boundary:?}");
        let mut oracle = Oracle {
            capacity,
            boundary,
            used: BTreeMap::new(),
            free: BTreeMap::new(),
            free_by_len: BTreeSet::new(),
            allocated: 0,
        };
        oracle.insert_free(0, capacity);
        oracle
    }

    /// Returns the length of the space in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the boundary that no allocation may cross, in bytes.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        self.boundary
    }

    /// Returns the longest range that the empty space could serve, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.boundary.map_or(self.capacity, |boundary| boundary.min(self.capacity))
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the free bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.capacity - self.allocated
    }

    /// Returns the number of used ranges.
    #[must_use]
    pub fn live(&self) -> usize {
        self.used.len()
    }

    /// Returns the number of coalesced free ranges.
    #[must_use]
    pub fn free_ranges(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of pieces into which boundaries divide the free ranges. O(ranges).
    #[must_use]
    pub fn free_pieces(&self) -> u128 {
        self.all_pieces().map(|(_, count)| u128::from(count)).sum()
    }

    /// Returns one past the last byte in use; 0 if none is in use.
    #[must_use]
    pub fn end_of_last(&self) -> u64 {
        self.used.last_key_value().map_or(0, |(start, len)| start + len)
    }

    /// Returns the used range that begins at `start`.
    #[must_use]
    pub fn used_at(&self, start: u64) -> Option<Range<u64>> {
        self.used.get(&start).map(|len| start..start + len)
    }

    /// Returns the used ranges that begin at or behind `start`, in address order.
    pub fn used_from(&self, start: u64) -> impl Iterator<Item = Range<u64>> {
        self.used.range(start..).map(|(start, len)| *start..start + len)
    }

    /// Returns the first free range that begins at or behind `at`, or else the first of all.
    #[must_use]
    pub fn free_from(&self, at: u64) -> Option<Range<u64>> {
        let found = self.free.range(at..).next().or_else(|| self.free.first_key_value());
        found.map(|(start, len)| *start..start + len)
    }

    /// Returns the whole space in address order: a segment for each used range and each coalesced
    /// free range. O(ranges).
    #[must_use]
    pub fn map(&self) -> Vec<Segment> {
        let mut map: Vec<Segment> =
            self.used.iter().map(|(start, len)| (*start, *len, true)).collect();
        map.extend(self.free.iter().map(|(start, len)| (*start, *len, false)));
        map.sort_unstable();
        map
    }

    /// Returns the longest range that can be granted now, in bytes. O(log ranges) unless many long
    /// free ranges cross boundaries.
    pub fn largest_free(&self) -> u64 {
        let mut largest = 0;
        for &(len, start) in self.free_by_len.iter().rev() {
            if len <= largest {
                break;
            }
            largest =
                self.pieces(start, len).map(|(len, _)| len).into_iter().fold(largest, u64::max);
        }
        largest
    }

    /// Returns whether `size` bytes can be granted at a multiple of `align`, a power of two.
    /// O(ranges) unless `align` is 1.
    #[must_use]
    pub fn fits(&self, size: u64, align: u64) -> bool {
        assert!(size > 0 && align.is_power_of_two(), "no request: {size} bytes at {align}");
        match align {
            1 => size <= self.largest_free(),
            _ => self
                .free_by_len
                .range((size, 0)..)
                .any(|&(len, start)| self.fits_in(start, len, size, align)),
        }
    }

    /// Returns whether a free range of exactly `size` bytes begins at a multiple of `align`. Always
    /// false for a space with a boundary.
    #[must_use]
    pub fn has_exact(&self, size: u64, align: u64) -> bool {
        self.boundary.is_none()
            && align.is_power_of_two()
            && self
                .free_by_len
                .range((size, 0)..=(size, u64::MAX))
                .any(|&(_, start)| start.is_multiple_of(align))
    }

    /// Returns how many ranges of `size` bytes can be granted at the same time. O(ranges).
    #[must_use]
    pub fn fits_times(&self, size: u64) -> u128 {
        self.all_pieces().map(|(len, count)| u128::from(len / size) * u128::from(count)).sum()
    }

    /// Returns whether `total` bytes can be granted in at most `max_ranges` ranges. They can if and
    /// only if the longest pieces add up to `total`. O(ranges·log ranges).
    #[must_use]
    pub fn fits_scattered(&self, total: u64, max_ranges: usize) -> bool {
        let mut pieces: Vec<Pieces> = self.all_pieces().collect();
        pieces.sort_unstable_by_key(|&(len, _)| std::cmp::Reverse(len));
        let (mut sum, mut remaining) = (0, max_ranges as u64);
        for (len, count) in pieces {
            let taken = count.min(remaining);
            sum += u128::from(len) * u128::from(taken);
            remaining -= taken;
        }
        sum >= u128::from(total)
    }

    /// Returns the free bytes directly behind the used range at `start` by which it could be
    /// extended; 0 if no range begins there.
    #[must_use]
    pub fn free_behind(&self, start: u64) -> u64 {
        let Some(Range { end, .. }) = self.used_at(start) else { return 0 };
        let free = self.free.get(&end).copied().unwrap_or(0);
        match self.boundary {
            Some(boundary) if end.is_multiple_of(boundary) => 0,
            Some(boundary) => free.min(boundary - end % boundary),
            None => free,
        }
    }

    /// Records that `[start, start + size)` was granted.
    pub fn grant(&mut self, start: u64, size: u64) -> Result<(), ViolationError> {
        if size == 0 {
            return Err(ViolationError::Empty(start));
        }
        let range = start..start.saturating_add(size);
        if range.end > self.capacity {
            return Err(ViolationError::OutOfSpace { range, capacity: self.capacity });
        }
        if let Some(boundary) = self.boundary
            && start / boundary != (range.end - 1) / boundary
        {
            return Err(ViolationError::Straddles { range, boundary });
        }
        let hole = self.free.range(..=start).next_back().map(|(start, len)| (*start, *len));
        let Some((hole_start, hole_len)) = hole.filter(|(start, len)| start + len >= range.end)
        else {
            return Err(ViolationError::Overlap { range });
        };
        self.remove_free(hole_start, hole_len);
        self.insert_free(hole_start, start - hole_start);
        self.insert_free(range.end, hole_start + hole_len - range.end);
        self.used.insert(start, size);
        self.allocated += size;
        Ok(())
    }

    /// Records that the used range that begins at `start` was freed; returns its length.
    pub fn free(&mut self, start: u64) -> Result<u64, ViolationError> {
        let size = self.used.remove(&start).ok_or(ViolationError::NotUsed(start))?;
        self.allocated -= size;
        self.join(start, size);
        Ok(size)
    }

    /// Records that the used range that begins at `start` now has `new_size` bytes, more or fewer
    /// than before.
    pub fn resize(&mut self, start: u64, new_size: u64) -> Result<(), ViolationError> {
        // Freed and granted again at the same place: bytes it may not extend into are not free.
        let size = self.free(start)?;
        self.grant(start, new_size).inspect_err(|_| {
            self.grant(start, size).expect("it was granted before");
        })
    }

    /// Records that `part` of the used range that begins at `start` was freed; the remainder on
    /// both sides stays in use.
    pub fn free_part(&mut self, start: u64, part: Range<u64>) -> Result<(), ViolationError> {
        let whole = self.used_at(start).ok_or(ViolationError::NotUsed(start))?;
        if part.is_empty() || part.start < whole.start || part.end > whole.end {
            return Err(ViolationError::NotPart { part, whole });
        }
        self.free(start)?;
        for side in [whole.start..part.start, part.end..whole.end] {
            if !side.is_empty() {
                self.grant(side.start, side.end - side.start)?;
            }
        }
        Ok(())
    }

    /// Records that the end of the space was moved, up or down.
    pub fn set_capacity(&mut self, capacity: u64) -> Result<(), ViolationError> {
        let end_of_last = self.end_of_last();
        if capacity < end_of_last {
            return Err(ViolationError::CutOff { capacity, end_of_last });
        }
        if let Some((&start, &len)) = self.free.last_key_value()
            && start + len == self.capacity
        {
            self.remove_free(start, len);
        }
        self.capacity = capacity;
        self.insert_free(end_of_last, capacity - end_of_last);
        Ok(())
    }

    fn insert_free(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.free.insert(start, len);
            self.free_by_len.insert((len, start));
        }
    }

    fn remove_free(&mut self, start: u64, len: u64) {
        self.free.remove(&start);
        self.free_by_len.remove(&(len, start));
    }

    /// Adds a free range and coalesces it with its neighbours.
    fn join(&mut self, start: u64, len: u64) {
        let (mut joined_start, mut joined_len) = (start, len);
        let before = self.free.range(..start).next_back().map(|(start, len)| (*start, *len));
        if let Some((before, before_len)) = before.filter(|(before, len)| before + len == start) {
            self.remove_free(before, before_len);
            (joined_start, joined_len) = (before, joined_len + before_len);
        }
        if let Some(&behind_len) = self.free.get(&(start + len)) {
            self.remove_free(start + len, behind_len);
            joined_len += behind_len;
        }
        self.insert_free(joined_start, joined_len);
    }

    /// Returns head, whole segments and tail of a free range.
    fn pieces(&self, start: u64, len: u64) -> [Pieces; 3] {
        let Some(boundary) = self.boundary else { return [(len, 1), (0, 0), (0, 0)] };
        let head = match start % boundary {
            0 => 0,
            into => (boundary - into).min(len),
        };
        let rest = len - head;
        let piece = |len| (len, u64::from(len > 0));
        [
            piece(head),
            if rest < boundary { (0, 0) } else { (boundary, rest / boundary) },
            piece(rest % boundary),
        ]
    }

    fn all_pieces(&self) -> impl Iterator<Item = Pieces> {
        self.free
            .iter()
            .flat_map(|(start, len)| self.pieces(*start, *len))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns whether an aligned range fits into the free range `[start, start + len)`.
    fn fits_in(&self, start: u64, len: u64, size: u64, align: u64) -> bool {
        let fits_piece = |start: u64, len: u64| {
            let aligned = start.checked_next_multiple_of(align);
            aligned.is_some_and(|aligned| aligned - start <= len && len - (aligned - start) >= size)
        };
        let Some(boundary) = self.boundary else { return fits_piece(start, len) };
        let [(head, _), (_, whole), (tail, _)] = self.pieces(start, len);
        if fits_piece(start, head) || fits_piece(start + len - tail, tail) {
            return true;
        }
        if whole == 0 || size > boundary {
            return false;
        }
        // Whole segment i begins at first + i·B. The distance from there up to a multiple of the
        // alignment, which is −(first + i·B) mod align, must leave `size` bytes of the segment.
        let slack = boundary - size;
        if slack >= align - 1 {
            return true;
        }
        let negative = |value: u64| (align - value % align) % align;
        first_in(negative(start + head), negative(boundary), align, 0, slack)
            .is_some_and(|segment| segment < u128::from(whole))
    }
}

#[cfg(test)]
mod tests;
