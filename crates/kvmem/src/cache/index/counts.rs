//! *Counts*: figures of a shard, which any thread reads without its lock.

use crate::sync::{AtomicU64, Ordering};

/// The counts of a shard's changes. Threads write them under the shard's lock, and read them
/// without it.
#[derive(Debug, Default)]
pub(in crate::cache) struct ChangeCounts {
    pub(in crate::cache) insertions: Count,
    pub(in crate::cache) replacements: Count,
    pub(in crate::cache) evictions: Count,
    pub(in crate::cache) removals: Count,
    pub(in crate::cache) sink_failures: Count,
    pub(in crate::cache) superseded: Count,
}

/// A figure with one writer at a time.
#[derive(Debug, Default)]
pub(in crate::cache) struct Count(AtomicU64);

impl Count {
    /// Adds one. The caller has the lock of the shard, or of the stripe that owns the figure, which
    /// saves an atomic read-modify-write.
    #[inline]
    pub(in crate::cache) fn more(&self) {
        // Relaxed: writers are ordered by the lock, and readers take the figure for itself.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the figure.
    pub(in crate::cache) fn get(&self) -> u64 {
        // Relaxed: see `more`.
        self.0.load(Ordering::Relaxed)
    }
}
