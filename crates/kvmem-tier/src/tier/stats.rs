//! *Statistics* of a tier.

/// What a tier holds, and what it has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Values held.
    pub entries: u64,
    /// Their bytes, without padding.
    pub bytes: u64,
    /// Bytes of the data area.
    pub capacity: u64,
    /// Bytes of the data area in use, padding included.
    pub used: u64,
    /// Bytes of the data area that lost or falsified what was written, and are not used any more.
    pub quarantined: u64,
    /// Values stored.
    pub stored: u64,
    /// Bytes of values written, padding included.
    pub written_bytes: u64,
    /// Bytes of journal, checkpoints and superblocks written.
    pub metadata_bytes: u64,
    /// Values fetched.
    pub hits: u64,
    /// Fetches of a key without a value, or whose value was replaced or evicted meanwhile.
    pub misses: u64,
    /// Fetches whose bytes had another checksum than what was stored.
    pub checksum_misses: u64,
    /// Fetches that the device failed.
    pub io_misses: u64,
    /// Values that a cache above evicted, and that were not written: see
    /// [`TierOptions::admission`](crate::TierOptions::admission).
    pub not_admitted: u64,
    /// Values evicted.
    pub evictions: u64,
    /// Copies of the superblock that could not be written. The other copy was.
    pub superblock_failures: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
}
