//! [`Fetched`]: what became of a fetch.

/// The result of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fetched {
    /// The value is in place, and its checksum is right.
    Hit,
    /// There is no value, or it was replaced or evicted while it was read.
    Absent,
    /// The value has another length than the memory for it.
    Length {
        /// Bytes of the value.
        len: u64,
    },
    /// The bytes of the disk were not those that were stored: the value is removed.
    Damaged,
    /// The value is encrypted with a key that the tier does not have. It stays.
    NoKey,
    /// The bytes are those that the index names, and their tag is wrong: a person has changed them,
    /// or put them in the place of others. The value is removed, and its blocks are free again.
    BadTag,
    /// The bytes were not on the disk: a power cut took them before they were synced. The value is
    /// removed, and its blocks are free again.
    Lost,
    /// The device failed. The value stays, and is read again later; it is removed if the file ends
    /// before it, or if only this value fails again and again.
    Failed,
    /// The device has failed to read the value, and does not try again yet: see
    /// [`retry_now`](super::DiskTier::retry_now).
    Suspect,
}
