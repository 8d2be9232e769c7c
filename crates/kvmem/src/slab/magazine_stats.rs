//! *Statistics* of the magazine layer.

/// What an instance holds and has done. Of one moment only where nobody else uses it meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MagazineStats {
    /// Class by class.
    pub(crate) classes: Vec<ClassStats>,
    /// Bytes stranded: those of all cached rounds.
    pub(crate) cached_bytes: u64,
    /// Bytes that may be stranded at most by the magazines that are about; `None` where there is
    /// no bound.
    pub(crate) charged_bytes: Option<u64>,
    /// The bound.
    pub(crate) max_cached_bytes: Option<u64>,
    /// Threads that have a cache of this instance.
    pub(crate) threads: usize,
    /// Trims that have been made.
    pub(crate) trims: u64,
}

/// Of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassStats {
    /// Rounds in the magazines of threads.
    pub(crate) in_threads: usize,
    /// Rounds in the depot.
    pub(crate) in_depot: usize,
    /// Rounds of a new magazine.
    pub(crate) capacity: usize,
    /// Bytes that one round strands.
    pub(crate) round_bytes: usize,
    /// Magazines that went between threads and depot.
    pub(crate) exchanges: u64,
    /// Times that rounds came from the lists of another memory node, since there were none in
    /// those of the own one.
    pub(crate) remote: u64,
    /// Times that a magazine was filled from the source.
    pub(crate) refills: u64,
    /// Times that the depot's lock was held by another.
    pub(crate) contention: u64,
}
