//! *Consistency*: the calls that keep a cache and a lower tier consistent.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::invalidation::{CacheInvalidationGuard, InvalidationGuard};
use super::lease::{Lease, Leased};
use crate::cache::{KvCache, Pinned};

impl<K: Hash + Eq> KvCache<K> {
    /// Removes the value under `key` from the cache and from a lower tier. While `forget` notifies
    /// the tier, the key is not [leased](Self::lease), so no thread fetches the value. `forget`
    /// runs under no lock of the cache.
    ///
    /// # Errors
    /// The error of `forget`. The value is then out of the cache, and the key is not leased until
    /// the cache is [cleared](Self::clear_with): a value that the tier may still have does not
    /// come back. A panic of `forget` has the same effect.
    pub(in crate::cache) fn remove_with<Q: Hash + Eq + ?Sized, E>(
        &self,
        key: &Q,
        forget: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Pinned<K>>, E>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        // Declared before the lock's guard: dropping it takes the lock, so it is dropped last.
        let invalidation;
        let found = match self.inner.state(shard) {
            // In a forked child there is no value, and no lease to withhold.
            None => return forget().map(|()| None),
            Some(mut state) => {
                state.leases.block(hash);
                invalidation = InvalidationGuard::new(self.inner.process, shard, hash);
                // This marks the values in flight: the sink stores each before `forget`, which then
                // removes it, or not at all.
                self.inner.take_out(shard, &mut state, hash, key)
            }
        };
        forget()?;
        invalidation.confirmed();
        Ok(found)
    }

    /// Requests the right to insert what is fetched from a lower tier: a [`Lease`]. Returns the
    /// [value](Leased::Present) instead if there is one, or [`Leased::Unavailable`] if the lower
    /// tier's value may be old. O(1).
    ///
    /// Take it *before* reading from the lower tier. The call counts neither as a hit nor as a
    /// miss.
    pub(in crate::cache) fn lease<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Leased<K>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        let Some(mut state) = self.inner.state(shard) else { return Leased::Unavailable };
        if let Some(held) = state.used(hash, key) {
            if !held.has_expired() {
                return Leased::Present(Pinned(held));
            }
            self.inner.evict_expired(shard, state, hash, &held);
            // The sink may have forked.
            state = match self.inner.state(shard) {
                Some(state) => state,
                None => return Leased::Unavailable,
            };
            // Another thread may have inserted a value meanwhile.
            if let Some(held) = state.used(hash, key).filter(|held| !held.has_expired()) {
                return Leased::Present(Pinned(held));
            }
        }
        match state.leases.lease(hash) {
            Some(number) => Leased::Lease(Lease::new(Arc::clone(&self.inner), hash, number)),
            None => Leased::Unavailable,
        }
    }

    /// Removes every value from the cache and, by `forget`, from a lower tier. Meanwhile no key is
    /// leased. Afterwards all keys are leased again, also those whose leases were unavailable
    /// because an [eviction callback](crate::cache::KvCacheBuilder::on_evict) or a
    /// `forget` had failed.
    ///
    /// # Errors
    /// The error of `forget`. The values are then out of the cache, and no key is leased until a
    /// later call succeeds.
    pub(in crate::cache) fn clear_with<E>(
        &self,
        forget: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut invalidation = CacheInvalidationGuard::new();
        for shard in &self.inner.shards {
            let Some(mut state) = self.inner.state(shard) else { break };
            invalidation.also(self.inner.process, shard, state.leases.block_all());
            self.inner.empty(shard, &mut state);
        }
        forget()?;
        invalidation.confirmed();
        Ok(())
    }
}
