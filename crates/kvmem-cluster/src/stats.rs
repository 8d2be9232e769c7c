//! *Statistics* of a cluster.

use kvmem::tier::TierState;

/// Counts the calls of a [`ClusterTier`](crate::ClusterTier) since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterStats {
    /// Whether it works.
    pub state: TierState,
    /// Values that the cluster has stored.
    pub stored: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Values that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Keys that were looked up and that the cluster does not have.
    pub absent: u64,
    /// Keys that were not looked up, because the cluster was away.
    pub skipped: u64,
    /// Values that were not stored: the cluster was away, or the staging memory was full, or the
    /// value was too long.
    pub dropped: u64,
    /// Stores and fetches that the cluster failed.
    pub failed: u64,
    /// Fetched values whose bytes were not those that were stored.
    pub corrupt: u64,
    /// Keys that were removed and that the cluster may still have.
    pub stale: u64,
    /// Bytes of values that wait for the cluster.
    pub queued_bytes: u64,
    /// Helpers that were started.
    pub starts: u64,
    /// Helpers that were killed because a call had no answer in time.
    pub hangs: u64,
    /// Helpers that were killed because an answer was none to a call.
    pub violations: u64,
}
