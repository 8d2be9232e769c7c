//! [`Lease`]: the right to insert what is fetched from a lower tier, if nothing else is inserted or
//! removed meanwhile.

use std::fmt;
use std::sync::Arc;

use super::space::Inner;
use super::{Pinned, Reservation};

/// What [`KvCache::lease`](super::KvCache::lease) found.
#[must_use = "a lease is given up when it is dropped"]
#[derive(Debug)]
pub enum Leased<K> {
    /// No value, and what a lower tier has is the latest: fetch it, and
    /// [commit](Reservation::commit_leased) it under this.
    Lease(Lease<K>),
    /// A value, pinned; it counts as used.
    Present(Pinned<K>),
    /// No value, and what a lower tier has may be old: a value is just being handed over to it, or
    /// it is being told to forget one; or it failed at that, for
    /// which see [`on_evict`](super::KvCacheBuilder::on_evict). Take it for a miss.
    Unavailable,
}

/// A lease of a key: its owner has found no value, and may insert the one that it fetches. Anything
/// that is inserted, removed or cleared under the key meanwhile *breaks* the lease. A lease that is
/// dropped is given up.
///
/// Several leases of a key may live at once; the first commit breaks the others. It may go to
/// another thread, and keeps the cache alive.
#[must_use = "a lease is given up when it is dropped"]
pub struct Lease<K> {
    /// Nothing once it has ended.
    cache: Option<Arc<Inner<K>>>,
    hash: u64,
    number: u64,
}

impl<K> Lease<K> {
    pub(super) fn new(cache: Arc<Inner<K>>, hash: u64, number: u64) -> Self {
        Lease { cache: Some(cache), hash, number }
    }

    /// Returns whether nothing has been inserted or removed under the key so far. That may change
    /// at once: the commit decides. A fetch in several steps can use this to end early. False
    /// in a forked child. O(1).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Some(cache) = self.cache.as_ref().filter(|cache| !cache.process.is_gone()) else {
            return false;
        };
        cache.shard(self.hash).change_leases(|leases| leases.is_live(self.hash, self.number))
    }

    /// Whether it is of the reservation's key and cache. No other can be committed under it.
    #[must_use]
    pub fn covers(&self, reservation: &Reservation<K>) -> bool {
        self.cache.as_ref().is_some_and(|cache| reservation.is_of(cache, self.hash))
    }

    /// Its number in the table.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Ends it, without a word to the table: the commit has seen to that.
    pub(super) fn end(mut self) {
        self.cache = None;
    }
}

impl<K> Drop for Lease<K> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.take().filter(|cache| !cache.process.is_gone()) {
            cache.shard(self.hash).change_leases(|leases| leases.give_up(self.hash, self.number));
        }
    }
}

impl<K> fmt::Debug for Lease<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What was not [committed](Reservation::commit_leased): the lease was broken. The cache is as it
/// was.
#[derive(Debug)]
pub struct Superseded<K> {
    /// The room, with what was written there: to be dropped, in general.
    pub reservation: Reservation<K>,
    /// What the key has now, if anything. It does not count as used.
    pub found: Option<Pinned<K>>,
}
