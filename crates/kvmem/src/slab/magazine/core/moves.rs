//! *Moves*: lets a reader detect that no round moved from one place to another while it looked.
//!
//! A thread that checks whether anything is cached reads one place after the other. It can miss a
//! round that moves meanwhile: the round is not yet in the place that is read first, and no longer
//! in the place that is read last. Every move between source and caches therefore increments one
//! counter when it begins and another counter when it ends; so does a put into a cache without a
//! magazine. Moves between a cache and the depot count as puts: see [reclaim](super::reclaim).
//! A reader loads the number of *ended* moves first and the number of
//! *begun* moves last. If the two are equal, every move that had begun by the second load had ended
//! before the first load, so no move overlapped the reading.

use crate::sync::{AtomicU64, Ordering, fence};

/// Counters of the moves that began and of those that ended. On cache lines of their own.
#[repr(align(128))]
pub(crate) struct Moves {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A move in progress; dropping it ends the move.
pub(crate) struct Move<'a>(Option<&'a Moves>);

impl Moves {
    pub(crate) fn new() -> Self {
        Moves { begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// Begins a move, if moves are tracked.
    pub(crate) fn begin(&self, tracked: bool) -> Move<'_> {
        if tracked {
            // Relaxed: ordered by the fence below.
            self.begun.fetch_add(1, Ordering::Relaxed);
            // Release pairs with the Acquire fence in `consistent_read`: a reader that sees a store
            // of this move also sees that the move has begun.
            fence(Ordering::Release);
        }
        Move(tracked.then_some(self))
    }

    /// Marks all moves as ended. For a forked child, in which the threads that were moving rounds
    /// do not exist.
    pub(crate) fn reset_in_child(&self) {
        // Relaxed, both: the process has one thread.
        self.ended.store(self.begun.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns the result of `look` if no round moved meanwhile.
    #[inline]
    pub(crate) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        // Acquire pairs with the Release in `Move::drop`: all stores of the ended moves are
        // visible.
        let ended = self.ended.load(Ordering::Acquire);
        let found = look();
        // Acquire pairs with the Release fence in `begin`.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        (self.begun.load(Ordering::Relaxed) == ended).then_some(found)
    }
}

impl Drop for Move<'_> {
    fn drop(&mut self) {
        if let Some(moves) = self.0 {
            // Release pairs with the Acquire in `consistent_read`.
            moves.ended.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reading_counts_unless_a_move_overlaps_and_a_child_has_none() {
        let moves = Moves::new();
        assert_eq!(moves.consistent_read(|| drop(moves.begin(true))), None);
        drop(moves.begin(true));
        let untracked = moves.begin(false);
        assert_eq!(moves.consistent_read(|| 7), Some(7));
        drop(untracked);
        // The thread that moves rounds does not exist in a child.
        std::mem::forget(moves.begin(true));
        assert_eq!(moves.consistent_read(|| 7), None);
        moves.reset_in_child();
        assert_eq!(moves.consistent_read(|| 7), Some(7));
    }
}
