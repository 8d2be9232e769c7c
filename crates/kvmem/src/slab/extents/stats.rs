//! *Extent statistics*: what is cached of a space.

use serde::Serialize;

use super::instance::ExtentInstance;

/// What the caches of a space hold and have done, at about one moment: other threads go on
/// meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExtentStats {
    /// Hot sizes, the named ones first.
    pub classes: Vec<ExtentClassStats>,
    /// Ranges that are cached.
    pub cached_ranges: usize,
    /// Their bytes.
    pub cached_bytes: u64,
    /// No more bytes than this can be cached by the magazines that are about.
    pub charged_bytes: u64,
    /// No more bytes than this can be cached ever.
    pub max_cached_bytes: u64,
    /// Threads that have magazines.
    pub threads: usize,
    /// Times that what was cached was taken back because a request found no room.
    pub reclaims: u64,
}

/// What is cached of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExtentClassStats {
    /// Bytes of each range.
    pub size: u64,
    /// The user named it; else it was learnt.
    pub named: bool,
    /// Ranges in the magazines of threads.
    pub in_threads: usize,
    /// Ranges in the depot.
    pub in_depot: usize,
    /// Ranges that a new magazine holds.
    pub magazine: usize,
    /// Magazines that went between threads and depot.
    pub exchanges: u64,
    /// Times that a magazine was filled from the books.
    pub refills: u64,
    /// Times that the depot's lock was held by another thread.
    pub contention: u64,
}

impl ExtentStats {
    pub(super) fn of(instance: &ExtentInstance) -> Self {
        let magazines = instance.magazines.stats();
        let named = instance.hot.named();
        let hot = magazines.classes.iter().take(instance.hot.used()).enumerate();
        let classes: Vec<_> = hot
            .map(|(class, stats)| ExtentClassStats {
                size: stats.round_bytes as u64,
                named: class < named,
                in_threads: stats.in_threads,
                in_depot: stats.in_depot,
                magazine: stats.capacity,
                exchanges: stats.exchanges,
                refills: stats.refills,
                contention: stats.contention,
            })
            .collect();
        ExtentStats {
            cached_ranges: classes.iter().map(|class| class.in_threads + class.in_depot).sum(),
            classes,
            cached_bytes: magazines.cached_bytes,
            charged_bytes: magazines.charged_bytes.unwrap_or(0),
            max_cached_bytes: magazines.max_cached_bytes.unwrap_or(u64::MAX),
            threads: magazines.threads,
            reclaims: instance.magazines.reclaims(),
        }
    }
}
