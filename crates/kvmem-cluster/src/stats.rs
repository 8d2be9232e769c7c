//! *Statistics* of a cluster.

use kvmem::tier::TierState;

kvmem::stats! {
    /// Counts the calls of a client of a cluster since it was made. Sizes are in bytes.
    pub struct ClusterStats: Clone Copy Debug Default PartialEq Eq {
        /// Whether the cluster works: 1 it works, 3 it is away.
        state: TierState [Gauge "kvmem_cluster_state" "state"],
        /// Values that the cluster has stored.
        stored: u64 [Counter "kvmem_cluster_stored_total" "values"],
        /// Bytes of values that the cluster has stored, as they are encoded.
        stored_bytes: u64 [Counter "kvmem_cluster_stored_bytes_total" "bytes"],
        /// Values that were fetched from the cluster.
        fetched: u64 [Counter "kvmem_cluster_fetched_total" "values"],
        /// Bytes of values that were fetched from the cluster.
        fetched_bytes: u64 [Counter "kvmem_cluster_fetched_bytes_total" "bytes"],
        /// Keys that were looked up and that the cluster does not have.
        absent: u64 [Counter "kvmem_cluster_absent_total" "keys"],
        /// Keys that were not looked up because the cluster was away.
        skipped: u64 [Counter "kvmem_cluster_skipped_total" "keys"],
        /// Values that were not stored, because the cluster was away, the staging memory was full,
        /// a later value had replaced them, or their length cannot be stored.
        dropped: u64 [Counter "kvmem_cluster_dropped_total" "values"],
        /// Stores and fetches that the cluster failed.
        failed: u64 [Counter "kvmem_cluster_failed_total" "values"],
        /// Fetched values whose bytes were not those that were stored.
        corrupt: u64 [Counter "kvmem_cluster_corrupt_total" "values"],
        /// Fetched values that are encrypted with a key which the tier does not have.
        key_misses: u64 [Counter "kvmem_cluster_key_misses_total" "values"],
        /// Fetched values whose tag was wrong: they were changed, or put in the place of others.
        tag_misses: u64 [Counter "kvmem_cluster_tag_misses_total" "values"],
        /// Fetched values of tiers with another codec, or that are not encrypted as they must be.
        form_misses: u64 [Counter "kvmem_cluster_form_misses_total" "values"],
        /// Bytes of the values that were encoded, before that.
        encoded_before_bytes: u64 [Counter "kvmem_cluster_encoded_before_bytes_total" "bytes"],
        /// Bytes of their objects.
        encoded_after_bytes: u64 [Counter "kvmem_cluster_encoded_after_bytes_total" "bytes"],
        /// Keys that were removed and that the cluster may still have: they are not looked up until
        /// it has removed their objects.
        stale: u64 [Gauge "kvmem_cluster_stale_keys" "keys"],
        /// Bytes of values that wait for the cluster.
        queued_bytes: u64 [Gauge "kvmem_cluster_queued_bytes" "bytes"],
        /// Helpers that were started.
        starts: u64 [Counter "kvmem_cluster_starts_total" "processes"],
        /// Helpers that were killed because a call had no answer in time.
        hangs: u64 [Counter "kvmem_cluster_hangs_total" "processes"],
        /// Helpers that were killed because an answer fitted no call.
        violations: u64 [Counter "kvmem_cluster_violations_total" "processes"],
    }
}
