//! *Holders*: counts the caches that have any magazine, and the depots' nodes that have had a full
//! one.
//!
//! A cache is counted when it gets its first magazine, and a node when it gets its first full one:
//! before the rounds can be found there. They stay counted until a trim has taken all magazines,
//! and a node also until a thread that looks finds no full magazine in it. So neither the fast path
//! nor an exchange of magazines counts. Rounds that return to the source stay counted until the
//! source has them. So the count is 0 only when nothing is cached.

use super::thread_cache::CacheAccess;
use crate::sync::{AtomicUsize, Ordering};

/// The number of holders of rounds. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Holders(AtomicUsize);

impl Holders {
    pub(crate) fn new() -> Self {
        Holders(AtomicUsize::new(0))
    }

    /// Counts one more holder of rounds.
    pub(crate) fn add(&self) {
        // Relaxed: the count is a single variable, and a thread that sees the round has seen this
        // before.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, count: usize) {
        if count > 0 {
            // Release pairs with the Acquire in `count`: a thread that reads 0 finds in the source
            // what was cached.
            self.0.fetch_sub(count, Ordering::Release);
        }
    }

    /// Counts a cache before one of its slots gets a magazine.
    pub(crate) fn add_cache<R: Copy + 'static>(&self, access: &CacheAccess<'_, R>) {
        if !access.set_has_magazines(true) {
            self.add();
        }
    }

    /// Returns the number of holders.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        // Acquire pairs with the Release in `remove`.
        self.0.load(Ordering::Acquire)
    }

    /// Sets the count anew. For a forked child.
    pub(crate) fn reset_in_child(&self, count: usize) {
        // Relaxed: the process has one thread.
        self.0.store(count, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_anew() {
        let holders = Holders::new();
        (0..3).for_each(|_| holders.add());
        holders.remove(1);
        holders.reset_in_child(7);
        assert_eq!(holders.count(), 7);
    }
}
