//! *Statistics of a cached space*.

use std::fmt;

use serde::Serialize;

use super::cache::ExtentCache;
use super::instance::ExtentInstance;

/// The contents and counters of a space's caches, read at about one moment while other threads may
/// continue. Caches are read before depots, so a magazine that moves from a depot to a thread
/// meanwhile may be missing from both, and one that moves the other way may be in both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExtentStats {
    /// One entry per hot size, the named ones first.
    pub classes: Vec<ExtentClassStats>,
    /// Number of cached ranges.
    pub cached_ranges: usize,
    /// Bytes of the cached ranges.
    pub cached_bytes: u64,
    /// Upper bound of the bytes that the current magazines can cache.
    pub charged_bytes: u64,
    /// The most bytes that may ever be cached.
    pub max_cached_bytes: u64,
    /// Threads that have magazines.
    pub threads: usize,
    /// Times that cached ranges were reclaimed because a request found no free range.
    pub reclaims: u64,
}

/// The contents and counters of the caches for one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExtentClassStats {
    /// Bytes of each range.
    pub size: u64,
    /// Whether the user named the size; otherwise it was detected.
    pub named: bool,
    /// Ranges in the magazines of threads.
    pub in_threads: usize,
    /// Ranges in the depot.
    pub in_depot: usize,
    /// Ranges that a new magazine can hold.
    pub magazine: usize,
    /// Magazines exchanged between threads and depot.
    pub exchanges: u64,
    /// Times that a magazine was filled from the space.
    pub refills: u64,
    /// Times that a thread found the depot's lock taken.
    pub contention: u64,
}

impl ExtentStats {
    pub(super) fn of(instance: &ExtentInstance) -> Self {
        let magazines = instance.magazines.stats();
        let named = instance.hot.named();
        let hot = magazines.classes.iter().take(instance.hot.used()).enumerate();
        let classes: Vec<_> = hot
            .map(|(class, stats)| ExtentClassStats {
                size: stats.round_bytes as u64,
                named: class < named,
                in_threads: stats.in_threads,
                in_depot: stats.in_depot,
                magazine: stats.capacity,
                exchanges: stats.exchanges,
                refills: stats.refills,
                contention: stats.contention,
            })
            .collect();
        ExtentStats {
            cached_ranges: classes.iter().map(|class| class.in_threads + class.in_depot).sum(),
            classes,
            cached_bytes: magazines.cached_bytes,
            charged_bytes: magazines.charged_bytes.unwrap_or(0),
            max_cached_bytes: magazines.max_cached_bytes.unwrap_or(u64::MAX),
            threads: magazines.threads,
            reclaims: instance.magazines.reclaims(),
        }
    }
}

impl ExtentCache {
    /// Returns the statistics of the caches. Takes no lock. O(threads × classes).
    #[must_use]
    pub fn stats(&self) -> ExtentStats {
        ExtentStats::of(self.instance)
    }
}

impl fmt::Debug for ExtentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentCache")
            .field("allocator", self.allocator())
            .field("stats", &self.stats())
            .finish()
    }
}
