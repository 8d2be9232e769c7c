//! *Moves*: how somebody who only looks can know that no round went from one place to another
//! meanwhile.
//!
//! Whoever wants to know whether nothing is cached looks at one place after the other. A round that
//! moves while he does may be missed: it was not yet here, and is no longer there. So every move
//! says when it begins and when it has ended. Who looks reads first how many have *ended* and last
//! how many have *begun*: if the two are equal, those that had begun by the end had ended before
//! the beginning, and none was under way in between.

use crate::sync::{AtomicU64, Ordering, fence};

/// Moves so far.
pub(super) struct Moves {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A move, under way as long as it lives.
pub(super) struct Move<'a>(Option<&'a Moves>);

impl Moves {
    pub(super) fn new() -> Self {
        Moves { begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// Begins a move, if anybody wants to know.
    pub(super) fn begin(&self, tracked: bool) -> Move<'_> {
        if tracked {
            // Relaxed: the fence below.
            self.begun.fetch_add(1, Ordering::Relaxed);
            // Release pairs with the Acquire fence in `consistent_read`: who sees what this move stores sees
            // that it has begun.
            fence(Ordering::Release);
        }
        Move(tracked.then_some(self))
    }

    /// None is under way: for a forked child, which has one thread.
    #[cfg(not(loom))]
    pub(super) fn reset_in_child(&self) {
        // Relaxed, both: there is one thread.
        self.ended.store(self.begun.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// What `look` found, if nothing moved meanwhile.
    #[inline]
    pub(super) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        // Acquire pairs with the Release in `Move::drop`: the moves that have ended are seen as a
        // whole.
        let ended = self.ended.load(Ordering::Acquire);
        let found = look();
        // Acquire pairs with the Release fence in `begin`.
        fence(Ordering::Acquire);
        // Relaxed: the fence.
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
