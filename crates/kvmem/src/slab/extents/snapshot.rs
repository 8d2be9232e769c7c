//! *Snapshot*: figures of a space and its caches together, at about one moment.

use crate::offset::Metrics;
use crate::slab::magazine::ClassStats;

use super::cache::ExtentCache;

/// Attempts to read metadata and caches consistently; after these they are read one after the
/// other.
const CONSISTENT_READ_TRIES: usize = 4;

/// Figures of a space at about one moment; see [`ExtentCache::snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtentSnapshot {
    pub(crate) capacity: u64,
    /// Bytes in use, without cached bytes.
    pub(crate) allocated: u64,
    /// The longest free range; ranges freed last may not be joined yet.
    pub(crate) largest_free: u64,
    /// Extents in use.
    pub(crate) live: u64,
    /// Cached bytes.
    pub(crate) cached: u64,
    /// Times that cached ranges were reclaimed because a request found no free range.
    pub(crate) reclaims: u64,
}

impl ExtentCache {
    /// Returns the metrics of the space. Cached ranges count as free; `largest_free` does not
    /// consider what they would join. Read at about one moment while other threads may continue.
    /// O(threads × classes).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let cached = self.instance.magazines.stats();
        let ranges: usize =
            cached.classes.iter().map(|class| class.in_threads + class.in_depot).sum();
        let longest = cached.classes.iter().filter(|class| class.in_threads + class.in_depot > 0);
        let longest = longest.map(|class| class.round_bytes as u64).max().unwrap_or(0);
        let mut metrics = self.allocator().metrics();
        metrics.allocated = metrics.allocated.saturating_sub(cached.cached_bytes);
        metrics.free = metrics.capacity - metrics.allocated;
        metrics.live = metrics.live.saturating_sub(ranges as u64);
        metrics.free_ranges += ranges as u64;
        metrics.largest_free = metrics.largest_free.max(longest);
        metrics.metadata_bytes += self.instance.raw.bytes() as u64;
        metrics
    }

    /// Returns the part of [`metrics`](Self::metrics) and [`stats`](Self::stats) that can be read
    /// without any lock that a request could wait for. O(threads × classes).
    pub(crate) fn snapshot(&self) -> ExtentSnapshot {
        let magazines = &self.instance.magazines;
        let look = || (self.space.published_stats(), magazines.stats());
        // Moves between metadata and caches are detected; those between a cache and a depot are
        // not: see `ExtentStats`. If all attempts fail, a range that moves between metadata and
        // cache meanwhile is counted in one of the two, in both, or in neither.
        let (usage, cached) = (0..CONSISTENT_READ_TRIES)
            .find_map(|_| magazines.consistent_read(look))
            .unwrap_or_else(look);
        let held = |class: &&ClassStats| class.in_threads + class.in_depot > 0;
        let longest =
            cached.classes.iter().filter(held).map(|class| class.round_bytes as u64).max();
        let ranges: usize =
            cached.classes.iter().map(|class| class.in_threads + class.in_depot).sum();
        ExtentSnapshot {
            capacity: usage.capacity,
            allocated: usage
                .capacity
                .saturating_sub(usage.free)
                .saturating_sub(cached.cached_bytes),
            largest_free: usage.largest.max(longest.unwrap_or(0)),
            live: usage.live.saturating_sub(ranges as u64),
            cached: cached.cached_bytes,
            reclaims: magazines.reclaims(),
        }
    }
}
