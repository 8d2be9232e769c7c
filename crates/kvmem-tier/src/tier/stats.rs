//! *Statistics* of a tier.

/// What a tier holds, and what it has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Values held.
    pub entries: u64,
    /// Of these, values in several ranges of the file.
    pub scattered: u64,
    /// Of these, values whose bytes a power cut may have taken: they were written without a sync,
    /// by a process that was killed before the next checkpoint, and were not read since.
    pub unverified_values: u64,
    /// The bytes of all values held, without padding.
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
    /// Bytes that were written to the file over its life: of values, journal, checkpoints and
    /// superblocks. Of a file that an earlier version made, since this one opened it first. What a
    /// process wrote of an unfinished checkpoint before it was killed is not counted.
    pub lifetime_bytes: u64,
    /// Bytes that were written in a day of this life, on average; the first day counts whole.
    pub bytes_per_day: u64,
    /// Values fetched.
    pub hits: u64,
    /// Fetches of a key without a value, or whose value was replaced or evicted meanwhile.
    pub misses: u64,
    /// Fetches whose bytes had another checksum than what was stored.
    pub checksum_misses: u64,
    /// Fetches of values whose bytes a power cut took before they were synced. Their blocks are
    /// free again.
    pub lost_misses: u64,
    /// Fetches that the device failed with an error.
    pub io_misses: u64,
    /// Fetches of which the device had fewer bytes than were stored: the file was cut off.
    pub short_misses: u64,
    /// Values that a cache above evicted, and that were not written: see
    /// [`DiskTierOptions::admission`](crate::DiskTierOptions::admission).
    pub not_admitted: u64,
    /// Values that a cache above evicted as it had fetched them: they were not written again.
    pub unchanged: u64,
    /// Values evicted.
    pub evictions: u64,
    /// Of these, values that had expired.
    pub expired: u64,
    /// Copies of the superblock that could not be written. The other copy was.
    pub superblock_failures: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
    /// Whether the journal failed: nothing is stored until the tier can begin it anew, which it
    /// tries in pauses of up to a minute. Values that were stored are still found.
    pub read_only: bool,
}

impl TierStats {
    /// Returns the sums.
    pub(crate) fn plus(self, other: TierStats) -> TierStats {
        TierStats {
            entries: self.entries + other.entries,
            scattered: self.scattered + other.scattered,
            unverified_values: self.unverified_values + other.unverified_values,
            bytes: self.bytes + other.bytes,
            capacity: self.capacity + other.capacity,
            used: self.used + other.used,
            quarantined: self.quarantined + other.quarantined,
            stored: self.stored + other.stored,
            written_bytes: self.written_bytes + other.written_bytes,
            metadata_bytes: self.metadata_bytes + other.metadata_bytes,
            lifetime_bytes: self.lifetime_bytes + other.lifetime_bytes,
            bytes_per_day: self.bytes_per_day + other.bytes_per_day,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            checksum_misses: self.checksum_misses + other.checksum_misses,
            lost_misses: self.lost_misses + other.lost_misses,
            io_misses: self.io_misses + other.io_misses,
            short_misses: self.short_misses + other.short_misses,
            not_admitted: self.not_admitted + other.not_admitted,
            unchanged: self.unchanged + other.unchanged,
            evictions: self.evictions + other.evictions,
            expired: self.expired + other.expired,
            superblock_failures: self.superblock_failures + other.superblock_failures,
            checkpoints: self.checkpoints + other.checkpoints,
            index_bytes: self.index_bytes + other.index_bytes,
            read_only: self.read_only || other.read_only,
        }
    }
}
