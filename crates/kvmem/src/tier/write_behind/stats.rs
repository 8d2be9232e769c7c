//! *Statistics* of a queue of evicted values.

/// What a [`WriteBehind`](super::WriteBehind) holds, and what it has done.
///
/// Every value that the cache evicted is `written`, `replaced`, `dropped`, `failed`, `rejected` or
/// still in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteBehindStats {
    /// Values in the queue, including those being written.
    pub values: u64,
    /// Their bytes. They are in use in the pool.
    pub bytes: u64,
    /// Removals in the queue.
    pub removals: u64,
    /// The most bytes that were in the queue at once.
    pub max_bytes: u64,
    /// Values that the cache evicted.
    pub evicted: u64,
    /// Values that the tier took: it stored them, or did not want them.
    pub written: u64,
    /// Bytes of these values.
    pub written_bytes: u64,
    /// Batches of values that were given to the tier.
    pub batches: u64,
    /// Values that a later value, or a removal of their key, made superfluous before they were
    /// written.
    pub replaced: u64,
    /// Values that were not written because the queue was full.
    pub dropped: u64,
    /// Values that the tier failed to take.
    pub failed: u64,
    /// Values that the queue did not take: it was closed, or full of removals.
    pub rejected: u64,
    /// Threads that waited because the queue was full.
    pub waits: u64,
    /// Values that were fetched out of the queue.
    pub hits: u64,
    /// Calls of the tier by a writer that panicked.
    pub panics: u64,
    /// Keys that are not fetched, because the tier failed to remove an older value.
    pub untrusted: u64,
}
