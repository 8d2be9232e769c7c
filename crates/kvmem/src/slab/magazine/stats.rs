//! *Statistics* of the magazine layer.

/// The cached rounds and the counters of an instance. A consistent snapshot only if no other thread
/// uses the instance meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MagazineStats {
    /// The statistics of each class.
    pub(crate) classes: Vec<ClassStats>,
    /// Bytes of all cached rounds.
    pub(crate) cached_bytes: u64,
    /// Upper bound of the bytes that the current magazines can hold; `None` if there is no bound.
    pub(crate) charged_bytes: Option<u64>,
    /// The most bytes that may be cached; `None` if there is no bound.
    pub(crate) max_cached_bytes: Option<u64>,
    /// Threads that have a cache of this instance.
    pub(crate) threads: usize,
    /// Trims so far.
    pub(crate) trims: u64,
}

/// The statistics of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassStats {
    /// Rounds in the magazines of threads.
    pub(crate) in_threads: usize,
    /// Rounds in the depot.
    pub(crate) in_depot: usize,
    /// The size of a new magazine, in rounds.
    pub(crate) capacity: usize,
    /// Bytes that one cached round keeps from other uses.
    pub(crate) round_bytes: usize,
    /// Magazines exchanged between threads and depot.
    pub(crate) exchanges: u64,
    /// Times that rounds came from another memory node's lists because the thread's own node had
    /// none.
    pub(crate) remote: u64,
    /// Times that a magazine was filled from the source.
    pub(crate) refills: u64,
    /// Times that a thread found the depot's lock taken.
    pub(crate) contention: u64,
}
