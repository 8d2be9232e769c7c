//! *Statistics* of a queue of evicted values.

crate::stats! {
    /// State and counts of the queue between a cache and its lower tier.
    ///
    /// Every value that the cache evicted is `written`, `replaced`, `dropped`, `failed`, `rejected`
    /// or still in the queue.
    pub struct WriteBehindStats: Clone Copy Debug Default PartialEq Eq {
        /// Values in the queue, including those being written.
        values: u64 [Gauge "kvmem_tier_queue_values" "values"],
        /// Bytes of the values in the queue. They are in use in the pool.
        bytes: u64 [Gauge "kvmem_tier_queue_bytes" "bytes"],
        /// Removals in the queue.
        removals: u64 [Gauge "kvmem_tier_queue_removals" "removals"],
        /// The most bytes that were in the queue at once.
        max_bytes: u64 [Gauge "kvmem_tier_queue_max_bytes" "bytes"],
        /// Values that the cache evicted.
        evicted: u64 [Counter "kvmem_tier_queue_evicted_total" "values"],
        /// Values that the tier took: it stored them, or did not want them.
        written: u64 [Counter "kvmem_tier_queue_written_total" "values"],
        /// Bytes of the values that the tier took.
        written_bytes: u64 [Counter "kvmem_tier_queue_written_bytes_total" "bytes"],
        /// Batches of values that were passed to the tier.
        batches: u64 [Counter "kvmem_tier_queue_batches_total" "batches"],
        /// Values that a later value, or a removal of their key, made superfluous before they were
        /// written.
        replaced: u64 [Counter "kvmem_tier_queue_unwritten_total" "values"
            "reason" = "replaced" "Evicted values that were not written."],
        /// Values that were not written because the queue was full.
        dropped: u64 [Counter "kvmem_tier_queue_unwritten_total" "values"
            "reason" = "full" "Evicted values that were not written."],
        /// Values that the tier failed to take.
        failed: u64 [Counter "kvmem_tier_queue_unwritten_total" "values"
            "reason" = "failed" "Evicted values that were not written."],
        /// Values that the queue did not take: it was closed, or full of removals.
        rejected: u64 [Counter "kvmem_tier_queue_unwritten_total" "values"
            "reason" = "rejected" "Evicted values that were not written."],
        /// Threads that waited because the queue was full.
        waits: u64 [Counter "kvmem_tier_queue_waits_total" "waits"],
        /// Values that were fetched out of the queue.
        hits: u64 [Counter "kvmem_tier_queue_hits_total" "values"],
        /// Calls of the tier by a writer that panicked.
        panics: u64 [Counter "kvmem_tier_queue_panics_total" "panics"],
        /// Keys that are not fetched, because the tier failed to remove an older value.
        untrusted: u64 [Gauge "kvmem_tier_queue_untrusted_keys" "keys"],
    }
}
