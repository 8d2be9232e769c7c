//! *Lanes*: chunks of threads that collide at the cursor.
//!
//! A line that eight processors write costs each of them some hundred nanoseconds per write,
//! however long the threads pause. When many exchanges of an arena's cursor have failed, its
//! threads therefore take *chunks* from the cursor and divide them by themselves. Until then, and
//! always for requests longer than a sixteenth of a chunk, the arena has one cursor and no chunk.
//!
//! ```text
//!                lane 0's chunk        lane 1's chunk           cursor              limit
//!   │ handed out │ ▓▓▓▓▓▓ rest │ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ rest │          │                    │
//!                       └ lane 0       └ lane 1        └ a multiple of the chunk's length
//! ```
//!
//! 1. A chunk ends at the next multiple of its length. A thread that serves a request at the cursor
//!    takes all bytes up to there. So a lane is one word, the address up to which its chunk is
//!    handed out, and is divided by the same exchange as the arena: see [cursor](super::cursor).
//!    Chunks follow each other without gaps.
//! 2. A thread uses the lane of its number. Threads of a pool have consecutive numbers, so up to
//!    [`LANES`] of them have lanes of their own.
//! 3. A thread *claims* its lane before it takes a chunk, so the other threads of the lane do not
//!    take chunks that it has no place for. Meanwhile they are served at the cursor.
//! 4. A request that fails at the cursor looks in all lanes: no byte is lost to other threads. The
//!    rest of the chunk that a thread is taking at that moment is in no lane yet.
//! 5. The end of a chunk that is too short for a request is skipped: less than a sixteenth of the
//!    chunk, and nothing if all requests have the same length, a power of two, and no larger
//!    alignment. All lanes together hold at most one part in 128 of the arena.

use std::ops::Range;

use super::cursor::Cursor;
use crate::sync::{MODELLED, thread_number};

/// The number of lanes.
pub(super) const LANES: usize = if MODELLED { 2 } else { 32 };
/// A chunk is at most one part in this many of the arena.
const CHUNK_SHARE: usize = LANES * if MODELLED { 4 } else { 128 };
/// The shortest chunk that is worth a visit to the cursor, and the longest.
const MIN_CHUNK: usize = if MODELLED { 16 } else { 4 << 10 };
const MAX_CHUNK: usize = 1 << 20;
/// A request from a lane is at most one part in this many of a chunk.
const REQUEST_SHARE: usize = if MODELLED { 2 } else { 16 };
/// The word of a claimed lane. Nothing is left in it, because it is a multiple of every length.
const CLAIMED: usize = 0;

/// The chunks of an arena.
pub(super) struct BumpLanes {
    /// A lane without a chunk is at the end of the arena.
    lanes: [Cursor; LANES],
    chunks: Chunks,
}

/// Where chunks end.
#[derive(Clone, Copy)]
struct Chunks {
    /// The length of a chunk, a power of two, minus one; 0 if the arena is too small for chunks.
    mask: usize,
    /// The end of the arena.
    limit: usize,
}

impl Chunks {
    /// Returns the number of bytes from an address in a chunk to the chunk's end.
    #[inline(always)]
    fn rest(self, at: usize) -> usize {
        (at.wrapping_neg() & self.mask).min(self.limit - at)
    }
}

impl BumpLanes {
    /// Makes the lanes of an arena of `len` bytes that ends at `limit`.
    pub(super) fn new(len: usize, limit: usize) -> Self {
        let chunk = (len / CHUNK_SHARE).min(MAX_CHUNK);
        let mask = if chunk < MIN_CHUNK { 0 } else { (1 << chunk.ilog2()) - 1 };
        let lanes = std::array::from_fn(|_| Cursor::new(limit));
        BumpLanes { lanes, chunks: Chunks { mask, limit } }
    }

    /// Returns whether the arena is large enough for chunks.
    pub(super) fn exist(&self) -> bool {
        self.chunks.mask > 0
    }

    /// Takes `size` bytes at the next multiple of `mask + 1` from the running thread's lane, from
    /// the cursor, or from another lane. `Err` holds the largest size that would have fit.
    #[inline(never)]
    pub(super) fn take(&self, cursor: &Cursor, size: usize, mask: usize) -> Result<usize, usize> {
        self.take_in(thread_number(), cursor, size, mask)
    }

    /// Takes bytes as the thread with this number; see [`take`](Self::take).
    pub(super) fn take_in(
        &self,
        number: usize,
        cursor: &Cursor,
        size: usize,
        mask: usize,
    ) -> Result<usize, usize> {
        let chunks = self.chunks;
        let longest = chunks.mask / REQUEST_SHARE;
        let room = if size > longest || mask > longest - size {
            cursor.take(size, mask, |at| chunks.limit - at, |_| 0, || ())
        } else {
            let lane = &self.lanes[number % LANES];
            match lane.take(size, mask, |at| chunks.rest(at), |_| 0, || ()) {
                Ok(start) => return Ok(start),
                Err(_) => self.take_chunk(lane, cursor, size, mask),
            }
        };
        room.or_else(|room| self.take_anywhere(size, mask, room))
    }

    /// Takes bytes at the cursor, and the rest of a chunk for the lane.
    #[cold]
    fn take_chunk(
        &self,
        lane: &Cursor,
        cursor: &Cursor,
        size: usize,
        mask: usize,
    ) -> Result<usize, usize> {
        let chunks = self.chunks;
        let before = lane.at();
        // Another thread of the lane may have taken a chunk meanwhile.
        let fits = (before.wrapping_neg() & mask) + size <= chunks.rest(before);
        let claimed = before != CLAIMED && !fits && lane.replace(before, CLAIMED);
        let keep = |end| if claimed { chunks.rest(end) } else { 0 };
        let taken = cursor.take(size, mask, |at| chunks.limit - at, keep, || ());
        if claimed {
            // Of two rests the lane has the longer one.
            let after = taken.map_or(before, |start| start + size);
            let longer = if chunks.rest(after) < chunks.rest(before) { before } else { after };
            let published = lane.replace(CLAIMED, longer);
            debug_assert!(published, "only the thread that claimed a lane changes it");
        }
        taken
    }

    /// Takes bytes from any lane. `room` is the largest size that would have fit at the cursor.
    #[cold]
    fn take_anywhere(&self, size: usize, mask: usize, mut room: usize) -> Result<usize, usize> {
        for lane in &self.lanes {
            match lane.take(size, mask, |at| self.chunks.rest(at), |_| 0, || ()) {
                Ok(start) => return Ok(start),
                Err(less) => room = room.max(less),
            }
        }
        Err(room)
    }

    /// Returns the ranges of addresses that lanes hold and have not handed out.
    pub(super) fn rests(&self) -> impl Iterator<Item = Range<usize>> {
        self.lanes.iter().map(|lane| {
            let at = lane.at();
            at..at + self.chunks.rest(at)
        })
    }

    /// Gives up all chunks.
    pub(super) fn reset(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.set(self.chunks.limit));
    }
}
