//! *Statistics* of a tier.

use super::error::StoreError;

kvmem::stats! {
    /// Contents of a disk tier, and counts since it was opened; of a set, the sums of those of all
    /// its tiers. Sizes are in bytes.
    pub struct TierStats: Clone Copy Debug Default PartialEq Eq {
        /// Values held.
        entries: u64 [Gauge "kvmem_tier_entries" "values"],
        /// Of the values, those in several ranges of the file.
        scattered: u64 [Gauge "kvmem_tier_scattered_entries" "values"],
        /// Of the values, those whose bytes a power cut may have taken: they were written without a
        /// sync, by a process that was killed before the next checkpoint, and were not read since.
        unverified_values: u64 [Gauge "kvmem_tier_unverified_entries" "values"],
        /// Of the values, those that the drive failed to read, and that are read again.
        suspects: u64 [Gauge "kvmem_tier_suspect_entries" "values"],
        /// Bytes of all values held, without padding.
        bytes: u64 [Gauge "kvmem_tier_bytes" "bytes"],
        /// Bytes of the file for values.
        capacity: u64 [Gauge "kvmem_tier_capacity_bytes" "bytes"],
        /// Bytes of the file that values use, padding included.
        used: u64 [Gauge "kvmem_tier_used_bytes" "bytes"],
        /// Bytes of the file that are not used any more, because what was written there was lost.
        quarantined: u64 [Gauge "kvmem_tier_quarantined_bytes" "bytes"],
        /// Values stored.
        stored: u64 [Counter "kvmem_tier_stored_total" "values"],
        /// Bytes of values written, padding included.
        written_bytes: u64 [Counter "kvmem_tier_written_bytes_total" "bytes"
            "kind" = "data" "Bytes written to the drive."],
        /// Bytes of journal, checkpoints and superblocks written.
        metadata_bytes: u64 [Counter "kvmem_tier_written_bytes_total" "bytes"
            "kind" = "metadata" "Bytes written to the drive."],
        /// Bytes that were written to the file over its life: of values, journal, checkpoints and
        /// superblocks. Of a file that an earlier version made, since this one opened it first. The
        /// part of an unfinished checkpoint that a killed process wrote is not counted.
        lifetime_bytes: u64 [Gauge "kvmem_tier_lifetime_bytes" "bytes"],
        /// Bytes that were written in a day of this life, on average; the first day counts whole.
        bytes_per_day: u64 [Gauge "kvmem_tier_bytes_per_day" "bytes"],
        /// Values fetched.
        hits: u64 [Counter "kvmem_tier_hits_total" "values"],
        /// Fetches of keys without a value, or whose value was replaced or evicted meanwhile.
        misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "absent" "Fetches that returned no value."],
        /// Fetches whose bytes had another checksum than those that were stored.
        checksum_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "checksum" "Fetches that returned no value."],
        /// Fetches of values whose bytes a power cut took before they were synced. Their blocks are
        /// free again.
        lost_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "lost" "Fetches that returned no value."],
        /// Fetches that the drive failed with an error.
        io_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "io" "Fetches that returned no value."],
        /// Fetches of which the file had fewer bytes than were stored: it was cut off.
        short_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "short" "Fetches that returned no value."],
        /// Fetches of values that the drive has failed to read, and does not read again yet.
        suspect_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "suspect" "Fetches that returned no value."],
        /// Fetches of encrypted values whose key the key file does not have.
        key_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "key" "Fetches that returned no value."],
        /// Fetches of values whose tag was wrong: they were changed, or put in the place of others.
        tag_misses: u64 [Counter "kvmem_tier_misses_total" "values"
            "kind" = "tag" "Fetches that returned no value."],
        /// Bytes of the values that were encoded, before that.
        encoded_before_bytes: u64 [Counter "kvmem_tier_encoded_bytes_total" "bytes"
            "stage" = "before" "Bytes of values that were compressed or encrypted."],
        /// Bytes of the forms that they were encoded to.
        encoded_after_bytes: u64 [Counter "kvmem_tier_encoded_bytes_total" "bytes"
            "stage" = "after" "Bytes of values that were compressed or encrypted."],
        /// Nanoseconds in which threads compressed and encrypted values.
        encode_ns: u64 [Counter "kvmem_tier_encode_nanoseconds_total" "nanoseconds"],
        /// Nanoseconds in which threads decrypted and decompressed values.
        decode_ns: u64 [Counter "kvmem_tier_decode_nanoseconds_total" "nanoseconds"],
        /// Values that a cache evicted and that were not written, by `admission` or
        /// `max_write_bytes_per_s`.
        not_admitted: u64 [Counter "kvmem_tier_not_admitted_total" "values"],
        /// Values that were not stored because they cannot be encrypted: the system has no random
        /// numbers, they are too long, or the file has no room for their namespace.
        encode_failures: u64 [Counter "kvmem_tier_not_stored_total" "values"
            "reason" = "encode" "Values that the tier failed to store."],
        /// Values that were not stored because the file is too short for them, or all of it was
        /// being written.
        space_failures: u64 [Counter "kvmem_tier_not_stored_total" "values"
            "reason" = "space" "Values that the tier failed to store."],
        /// Values that were not stored because the drive failed, or the journal before.
        device_failures: u64 [Counter "kvmem_tier_not_stored_total" "values"
            "reason" = "device" "Values that the tier failed to store."],
        /// Values that a cache evicted as it had fetched them: they were not written again.
        unchanged: u64 [Counter "kvmem_tier_unchanged_total" "values"],
        /// Values evicted.
        evictions: u64 [Counter "kvmem_tier_evictions_total" "values"],
        /// Of the evicted values, those that had expired.
        expired: u64 [Counter "kvmem_tier_expired_total" "values"],
        /// Copies of the superblock that could not be written. The other copy was.
        superblock_failures: u64 [Counter "kvmem_tier_superblock_failures_total" "superblocks"],
        /// Checkpoints written.
        checkpoints: u64 [Counter "kvmem_tier_checkpoints_total" "checkpoints"],
        /// Memory that the index takes.
        index_bytes: u64 [Gauge "kvmem_tier_index_bytes" "bytes"],
        /// Bytes of memory that are registered as fixed buffers with the rings of the file.
        fixed_buffer_bytes: u64 [Gauge "kvmem_tier_fixed_buffer_bytes" "bytes"],
        /// Transfers that used a fixed buffer.
        fixed_buffer_transfers: u64 [Counter "kvmem_tier_fixed_buffer_transfers_total" "transfers"],
        /// Whether the journal failed: nothing is stored until the tier can begin it anew, which it
        /// tries in pauses of up to a minute. Values that were stored are still found.
        read_only: bool [Gauge "kvmem_tier_read_only" "tiers"],
    }
}

impl TierStats {
    /// Counts a value that was not stored.
    pub(super) fn count_failure(&mut self, error: &StoreError) {
        *match error {
            StoreError::TooManyNamespaces { .. } | StoreError::Encode(_) => {
                &mut self.encode_failures
            }
            StoreError::TooLarge { .. } | StoreError::NoRoom { .. } => &mut self.space_failures,
            StoreError::Tier(_) => &mut self.device_failures,
        } += 1;
    }

    /// Returns the number of values that were let go without a call that removes.
    pub(crate) fn let_go(&self) -> u64 {
        self.evictions + self.checksum_misses + self.lost_misses + self.tag_misses
    }
}
