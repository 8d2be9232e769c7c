//! *Read*: fetches that a thread has started are read from the lower tier, all at once.

use crate::cache::leases::{Lease, Leased};
use crate::cache::state::{FetchId, LowerTier};
use crate::cache::{KvCache, Pinned, Reservation};
use crate::sys;
use crate::tier::TierRead;
use std::borrow::Cow;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

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
        let Some(below) = self.inner.lower_tier.as_ref().filter(|_| !started.is_empty()) else {
            return;
        };
        let mut started = Started { cache: self, fetches: started };
        let mut read = self.read_leased(below, &started.fetches);
        if !self.is_forked() {
            // One by one: if the `Drop` of a key panics, the guard ends the rest.
            while let (Some((id, _key)), Some(value)) = (started.fetches.pop(), read.pop()) {
                self.inner.fetches.finish(id, value);
            }
        }
    }

    fn read_leased(
        &self,
        LowerTier { tier, key_bytes }: &LowerTier<K>,
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
        let keys: Vec<Cow<'_, [u8]>> =
            leases.iter().map(|(index, _)| key_bytes(&fetches[*index].1)).collect();
        let lengths = tier.ask(&keys.iter().map(|key| &**key).collect::<Vec<_>>());
        let mut rooms: Vec<(usize, Lease<K>, Reservation<K>)> = Vec::new();
        let mut of_rooms: Vec<&[u8]> = Vec::new();
        for (((index, lease), key), len) in leases.into_iter().zip(&keys).zip(lengths) {
            let len = len.and_then(|len| usize::try_from(len).ok());
            let room = len.and_then(|len| self.reserve(fetches[index].1.clone(), len).ok());
            if let Some(room) = room {
                rooms.push((index, lease, room));
                of_rooms.push(key);
            }
        }
        if rooms.is_empty() {
            return found;
        }
        let mut reads: Vec<TierRead<'_>> = of_rooms
            .into_iter()
            .zip(&mut rooms)
            .map(|(key, (_, _, room))| TierRead { key, into: room.bytes_mut() })
            .collect();
        let hits = tier.fetch(&mut reads);
        drop(reads);
        for ((index, lease, mut room), hit) in rooms.into_iter().zip(hits) {
            // A tier may find a value for some seconds after its time: see `TierHints::ttl`.
            if let Some(hit) = hit.filter(|hit| hit.hints.ttl != Some(Duration::ZERO)) {
                room.set_hints(hit.hints);
                room.set_origin(hit.origin);
                found[index] = match room.commit_fetched(lease) {
                    Ok(pinned) => Some(pinned),
                    Err(newer) => newer,
                };
            }
        }
        found
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KvCache<K> {
    /// Has fetches started by a thread in the background. If there is none, and none can be made,
    /// this thread reads.
    pub(super) fn read_in_background(&self, ids: &[FetchId]) {
        let fetches = &self.inner.fetches;
        if !fetches.submit(ids) {
            return;
        }
        let (table, cache) = (Arc::clone(fetches), Arc::downgrade(&self.inner));
        let thread = sys::spawn("kvmem-fetch", move || {
            while let Some(batch) = table.next_batch() {
                let Some(inner) = cache.upgrade() else {
                    batch.into_iter().for_each(|(id, _)| table.finish(id, None));
                    continue;
                };
                // The panic of a tier has been reported by the panic hook, and has ended the
                // fetches without a value.
                let _ = catch_unwind(AssertUnwindSafe(|| KvCache { inner }.read(batch)));
            }
            table.thread_ended();
        });
        match thread {
            Ok(thread) => self.inner.fetch_threads.add(thread),
            Err(_) => {
                if fetches.thread_ended() {
                    self.read(fetches.start(ids));
                }
            }
        }
    }
}
