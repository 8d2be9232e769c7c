//! [`Lease`]: the right to insert what is fetched from a lower tier, if nothing else is inserted or
//! removed meanwhile.

use std::sync::Arc;

use crate::cache::Pinned;
use crate::cache::state::CacheState;

/// The result of [`KvCache::lease`].
#[must_use = "a lease ends when it is dropped"]
pub(in crate::cache) enum Leased<K> {
    /// The cache has no value, and the value of a lower tier is the latest: fetch it, and
    /// [commit](crate::cache::Reservation::commit_fetched) it under this lease.
    Lease(Lease<K>),
    /// The cache has a value: it is pinned, and counts as used.
    Present(Pinned<K>),
    /// The cache has no value, and the value of a lower tier may be old: the eviction sink is
    /// storing a value under the key, or the lower tier is invalidating one, or one of these failed
    /// (see [`on_evict`](crate::cache::KvCacheBuilder::on_evict)). Treat it as a miss.
    Unavailable,
}

/// A lease of a key: its owner has found no value, and may insert the one that it fetches. An
/// insertion, a removal or a clear under the key meanwhile *breaks* the lease. Dropping a lease
/// ends it.
///
/// Several leases of a key may live at once; the first commit breaks the others. A lease can move
/// to another thread, and keeps the cache alive.
#[must_use = "a lease ends when it is dropped"]
pub(in crate::cache) struct Lease<K> {
    /// `None` after the lease has ended.
    cache: Option<Arc<CacheState<K>>>,
    hash: u64,
    number: u64,
}

impl<K> Lease<K> {
    pub(in crate::cache) fn new(cache: Arc<CacheState<K>>, hash: u64, number: u64) -> Self {
        Lease { cache: Some(cache), hash, number }
    }

    /// Returns the hash of the key.
    pub(in crate::cache) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of the lease in the table.
    pub(in crate::cache) fn number(&self) -> u64 {
        self.number
    }

    /// Ends the lease without changing the table, since the commit has removed it there.
    pub(in crate::cache) fn end(mut self) {
        self.cache = None;
    }
}

impl<K> Drop for Lease<K> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.take().filter(|cache| !cache.process.is_forked()) {
            cache.shard(self.hash).change_leases(|leases| leases.give_up(self.hash, self.number));
        }
    }
}
