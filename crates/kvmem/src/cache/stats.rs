//! *Stats*: the figures of a cache.

use std::fmt;

use serde::Serialize;

crate::stats! {
    /// Figures of a cache. Each is exact; they are not of one instant while other threads change
    /// the cache. Sizes are in bytes.
    pub struct KvCacheStats: Clone Copy Debug Default PartialEq Eq Serialize {
        /// Blocks in the cache, including those being written. Blocks that were removed or replaced
        /// while pinned are not included.
        blocks: u64 [Gauge "kvmem_cache_blocks" "blocks"],
        /// Bytes of these blocks.
        bytes: u64 [Gauge "kvmem_cache_bytes" "bytes"],
        /// Look-ups that found their key in memory.
        hits: u64 [Counter "kvmem_cache_hits_total" "look-ups"],
        /// Look-ups that did not find their key in memory.
        misses: u64 [Counter "kvmem_cache_misses_total" "look-ups"],
        /// Values committed.
        insertions: u64 [Counter "kvmem_cache_insertions_total" "blocks"],
        /// Committed values that replaced another value under the same key.
        replacements: u64 [Counter "kvmem_cache_replacements_total" "blocks"],
        /// Blocks evicted.
        evictions: u64 [Counter "kvmem_cache_evictions_total" "blocks"],
        /// Blocks removed by their key.
        removals: u64 [Counter "kvmem_cache_removals_total" "blocks"],
        /// Insertions that failed because no block could be evicted.
        insertion_failures: u64 [Counter "kvmem_cache_insertion_failures_total" "requests"],
        /// Evicted values that the eviction sink or the lower tier failed to store.
        sink_failures: u64 [Counter "kvmem_cache_sink_failures_total" "blocks"],
        /// Fetched values that were not inserted because the key was changed meanwhile.
        superseded: u64 [Counter "kvmem_cache_superseded_total" "blocks"],
    }
}

impl KvCacheStats {
    /// Returns the hits divided by the look-ups; 0 before the first call.
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
