//! *Sequence counter*: guards figures that change together.

use super::checker::{AtomicU64, Ordering, fence, hint};
use super::statics::const_new;

/// A sequence counter: guards figures that change together. Writers exclude each other. Readers
/// take no lock, and accept figures of two moments if the changes never pause.
pub(crate) struct SeqCounter {
    /// Odd during a change.
    changes: AtomicU64,
}

/// Attempts to read the figures consistently.
const LOOKS: usize = 100;

impl SeqCounter {
    const_new! {
        pub(crate) const fn new() -> Self {
            SeqCounter { changes: AtomicU64::new(0) }
        }
    }

    /// Runs `change`, which stores the figures. The caller holds a lock that all writers take.
    pub(crate) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        // Relaxed, both: one writer at a time; ordered by the fence.
        let before = self.changes.load(Ordering::Relaxed);
        self.changes.store(before.wrapping_add(1), Ordering::Relaxed);
        // Release pairs with the Acquire fence in `look`: a reader that sees a later store sees an
        // odd number, or a larger one.
        fence(Ordering::Release);
        let done = change();
        // Release pairs with the Acquire load in `look`: a reader that sees the number sees all
        // that was stored.
        self.changes.store(before.wrapping_add(2), Ordering::Release);
        done
    }

    /// Returns the result of `look`, which loads the figures. The figures are consistent unless 100
    /// attempts meet a change. Never waits for a writer that was preempted.
    pub(crate) fn look<T>(&self, look: impl Fn() -> T) -> T {
        let mut looks = 0;
        loop {
            // Acquire pairs with the Release at the end of `change`.
            let before = self.changes.load(Ordering::Acquire);
            let found = look();
            // Acquire pairs with the Release fence in `change`.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            let whole = before.is_multiple_of(2) && before == self.changes.load(Ordering::Relaxed);
            looks += 1;
            if whole || looks == LOOKS {
                return found;
            }
            hint::spin_loop();
        }
    }
}
