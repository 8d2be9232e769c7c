//! *Stats*: the figures of a cache.

use std::fmt;

use serde::Serialize;

/// Figures of a cache. Each is exact; they are not of one instant while other threads change the
/// cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KvCacheStats {
    /// Number of blocks in the cache, including those being written. Blocks that were removed or
    /// replaced while pinned are not included.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// Calls of `get` that found their key.
    pub hits: u64,
    /// Calls of `get` that did not find their key.
    pub misses: u64,
    /// Values committed.
    pub insertions: u64,
    /// Committed values that replaced another value under the same key.
    pub replacements: u64,
    /// Blocks evicted, for space or by the watermarks.
    pub evictions: u64,
    /// Blocks removed by their key.
    pub removals: u64,
    /// Insertions that failed because no block could be evicted.
    pub insertion_failures: u64,
    /// Evicted values that the [eviction sink](super::KvCacheBuilder::on_evict) failed to store.
    pub sink_failures: u64,
    /// Fetched values that were not inserted because the key was changed
    /// meanwhile.
    pub superseded: u64,
}

impl KvCacheStats {
    /// Returns the hits divided by the calls of `get`; 0 before the first call.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let calls = self.hits + self.misses;
        if calls == 0 { 0.0 } else { self.hits as f64 / calls as f64 }
    }
}

impl fmt::Display for KvCacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvCacheStats { blocks, bytes, hits, misses, insertions, evictions, .. } = self;
        write!(
            f,
            "{blocks} blocks of {bytes} bytes, {hits} hits, {misses} misses, \
             {insertions} insertions, {evictions} evictions"
        )
    }
}
