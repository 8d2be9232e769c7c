//! *Read*: fetches that a thread has started are read from the lower tier, all at once.

use std::hash::{BuildHasher, Hash};

use crate::cache::state::FetchId;
use crate::cache::tier::{Lease, Leased};
use crate::cache::{KvCache, LowerTier, Pinned, Reservation, TierOrigin, TierRead};

/// Fetches that this thread has started. Those that are left when it is dropped, as by a panic of
/// the tier, end without a value: other threads may wait for them.
struct Started<'a, K: Hash + Eq + Clone> {
    cache: &'a KvCache<K>,
    fetches: Vec<(FetchId, K)>,
}

impl<K: Hash + Eq + Clone> Drop for Started<'_, K> {
    fn drop(&mut self) {
        // The tier may have forked.
        if !self.cache.is_forked() {
            let fetches = &self.cache.inner.fetches;
            self.fetches.drain(..).for_each(|(id, _)| fetches.finish(id, None));
        }
    }
}

impl<K: Hash + Eq + Clone> KvCache<K> {
    /// Returns handles of the fetches of keys. A fetch that has begun is joined only if what it
    /// reads is the latest so far.
    pub(super) fn join_fetches<'a>(&self, keys: impl Iterator<Item = &'a K>) -> Vec<FetchId>
    where
        K: 'a,
    {
        let is_current = |key: &K, lease| {
            let hash = self.inner.hasher.hash_one(key);
            self.inner.shard(hash).change_leases(|leases| leases.is_live(hash, lease))
        };
        self.inner.fetches.join(keys, is_current)
    }

    /// Reads the values of fetches that this thread has started, commits them, and ends the
    /// fetches.
    pub(super) fn read(&self, started: Vec<(FetchId, K)>) {
        let Some(tier) = self.inner.lower_tier.as_ref().filter(|_| !started.is_empty()) else {
            return;
        };
        let mut started = Started { cache: self, fetches: started };
        let read = self.read_leased(tier.as_ref(), &started.fetches);
        if !self.is_forked() {
            for ((id, _), value) in started.fetches.drain(..).zip(read) {
                self.inner.fetches.finish(id, value);
            }
        }
    }

    fn read_leased(
        &self,
        tier: &dyn LowerTier<K>,
        fetches: &[(FetchId, K)],
    ) -> Vec<Option<Pinned<K>>> {
        let mut found: Vec<Option<Pinned<K>>> = fetches.iter().map(|_| None).collect();
        // First the leases, then the tier: what happens in between breaks them.
        let mut leases: Vec<(usize, Lease<K>)> = Vec::new();
        for ((index, (id, key)), found) in fetches.iter().enumerate().zip(&mut found) {
            match self.lease(key) {
                Leased::Lease(lease) => {
                    self.inner.fetches.leased(*id, lease.number());
                    leases.push((index, lease));
                }
                Leased::Present(pinned) => *found = Some(pinned),
                Leased::Unavailable => {}
            }
        }
        if leases.is_empty() {
            return found;
        }
        let wanted: Vec<&K> = leases.iter().map(|(index, _)| &fetches[*index].1).collect();
        let lengths = tier.lengths(&wanted);
        let mut rooms: Vec<(usize, Lease<K>, Reservation<K>)> = Vec::new();
        for ((index, lease), len) in leases.into_iter().zip(lengths) {
            let room = len.and_then(|len| self.reserve(fetches[index].1.clone(), len).ok());
            rooms.extend(room.map(|room| (index, lease, room)));
        }
        if rooms.is_empty() {
            return found;
        }
        let mut reads: Vec<TierRead<'_, K>> = rooms
            .iter_mut()
            .map(|(index, _, room)| TierRead::new(&fetches[*index].1, room.bytes_mut()))
            .collect();
        let whole = tier.fetch(&mut reads);
        let origins: Vec<Option<TierOrigin>> = reads.iter().map(|read| read.origin).collect();
        for (((index, lease, room), whole), origin) in rooms.into_iter().zip(whole).zip(origins) {
            if whole {
                found[index] = match room.commit_fetched(lease, origin) {
                    Ok(pinned) => Some(pinned),
                    Err(superseded) => superseded.found,
                };
            }
        }
        found
    }
}
