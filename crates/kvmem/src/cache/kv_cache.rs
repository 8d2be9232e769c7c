//! [`KvCache`]: finds, pins, removes and evicts values.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::index::{CacheLimits, Pinned};
use super::source::Source;
use super::state::{Below, CacheState, Spread, VictimSearch};
use super::{Eviction, KvCacheStats};
use crate::offset::CheckError;
use crate::pool::Pool;

/// A table of values under keys, in blocks of a [`Pool`]. Any thread finds them and pins them while
/// it uses them; the cache evicts others when it needs space.
///
/// Cheap to clone; clones are the same cache. Pins, reservations and blocks outlive it.
///
/// A key is dropped just before the bytes that it was inserted with are free, and so before another
/// value can get them. Its `Drop` may run under a lock of the cache, and must not call the cache.
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::cache::KvCache;
/// use kvmem::pool::Pool;
///
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
/// let cache: KvCache<u64> = KvCache::new(&pool);
///
/// cache.insert(7, b"the keys and values of 512 tokens")?;
/// let pinned = cache.get(&7).expect("there is room for it");
/// assert_eq!(pinned.bytes(), b"the keys and values of 512 tokens");
/// assert!(cache.get(&8).is_none());
///
/// // Written in place, by the processor or a device.
/// let mut room = cache.reserve(8, 100_000)?;
/// room.bytes_mut().fill(8);
/// drop(room.commit());
/// assert!(cache.contains(&8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvCache<K> {
    pub(super) inner: Arc<CacheState<K>>,
}

/// Keys whose cache misses overlap: some processors wait for no more lines at once.
const PREFETCHED_AT_ONCE: usize = 16;

impl<K: Hash + Eq> KvCache<K> {
    pub(super) fn with_parts(
        pool: Pool,
        source: Source,
        below: Below<K>,
        limits: CacheLimits,
        eviction: &Eviction,
        spread: Spread,
    ) -> Self {
        let inner = CacheState::new(pool, source, below, limits, eviction, spread);
        KvCache { inner: Arc::new(inner) }
    }

    /// Returns the value that memory has under `key`, pinned. The value counts as used. The lower
    /// tier is not called. O(1). Threads that look up do not wait for each other, only for threads
    /// that change the same shard.
    #[inline]
    #[must_use]
    pub fn get_in_memory<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_forked() {
            return None;
        }
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).get(hash, key).map(Pinned)
    }

    /// Starts to fetch into the processor's caches what [`get`](Self::get) and
    /// [`reserve`](Self::reserve) of these keys read first. A server knows the keys of a request
    /// before it looks them up one after the other: their cache misses then overlap. Changes
    /// nothing, and counts no use. O(keys).
    ///
    /// ```
    /// # use kvmem::arena::PageSize;
    /// # use kvmem::cache::KvCache;
    /// # use kvmem::pool::Pool;
    /// # let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let cache: KvCache<u64> = KvCache::new(&pool);
    /// cache.insert(7, b"seven")?;
    /// let keys = [7, 8, 9];
    /// cache.prefetch(&keys);
    /// assert_eq!(keys.iter().filter_map(|key| cache.get(key)).count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch<'a, Q: Hash + ?Sized + 'a>(&self, keys: impl IntoIterator<Item = &'a Q>)
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_forked() {
            return;
        }
        let mut keys = keys.into_iter();
        let mut hashes = [0; PREFETCHED_AT_ONCE];
        loop {
            // The caller's code runs before a lock is taken.
            let mut len = 0;
            for (hash, key) in hashes.iter_mut().zip(&mut keys) {
                *hash = self.inner.hasher.hash_one(key);
                len += 1;
            }
            self.inner.prefetch(&hashes[..len]);
            if len < PREFETCHED_AT_ONCE {
                return;
            }
        }
    }

    /// Returns whether memory has a value under `key`. The value does not count as used, and the
    /// lower tier is not called. O(1).
    #[must_use]
    pub fn contains_in_memory<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_forked() {
            return false;
        }
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).contains(hash, key)
    }

    /// Removes the value under `key` from memory alone, and returns it. Its bytes are free when the
    /// last pin on it is dropped. A value that the lower tier has under the key stays there, and a
    /// later [`get`](Self::get) fetches it. O(1).
    pub fn remove_in_memory<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        let mut state = self.inner.state(shard)?;
        self.inner.take_out(shard, &mut state, hash, key)
    }

    /// Removes every value from memory alone, shard after shard. Values inserted into a shard after
    /// its shard is reached stay. Pins stay valid, and so do the values of the lower tier. O(blocks
    /// held).
    pub fn clear_in_memory(&self) {
        for shard in &self.inner.shards {
            let Some(mut state) = self.inner.state(shard) else { return };
            self.inner.empty(shard, &mut state);
        }
    }

    /// Evicts until at most `bytes` are held or no block can be evicted. Returns the bytes held
    /// then. With this a thread can make space ahead of time.
    pub fn evict_to(&self, bytes: u64) -> u64 {
        let inner = &self.inner;
        let mut search = VictimSearch::default();
        while inner.usage.bytes() > bytes && inner.evict(&mut search, None).is_some() {}
        inner.usage.bytes()
    }

    /// Verifies the invariants, numbered in `shard_state.rs`, while no other thread is in the
    /// cache. O(blocks), for tests.
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library, or of the key's `Hash` and `Eq`. In a forked child
    /// there is nothing to verify.
    pub fn check(&self) -> Result<(), CheckError> {
        let (mut blocks, mut bytes) = (0, 0);
        for shard in &self.inner.shards {
            let Some(state) = self.inner.state(shard) else { return Ok(()) };
            bytes += state.check()?;
            blocks += state.len() as u64;
        }
        let charged = (self.len_in_memory(), self.bytes());
        if charged.0 < blocks || charged.1 < bytes {
            let what =
                format!("{blocks} blocks of {bytes} bytes are held, {charged:?} are charged");
            return Err(CheckError { invariant: 4, what });
        }
        Ok(())
    }
}

impl<K> KvCache<K> {
    /// Returns the number of values in memory, including those being written. O(1).
    #[must_use]
    pub fn len_in_memory(&self) -> u64 {
        self.inner.usage.blocks()
    }

    /// Returns the bytes held, including those being written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.usage.bytes()
    }

    /// Returns whether this process is a forked child of the one that made the cache. The memory
    /// and the values stay with the parent. In the child, look-ups and removals find nothing, no
    /// lease is granted, insertions fail with [`Forked`](super::KvCacheError::Forked), and nothing
    /// is evicted. [`len`](Self::len), [`bytes`](Self::bytes) and [`stats`](Self::stats) return the
    /// values at the time of the fork. No call waits for a lock that a thread of the parent held. A
    /// drop in the child frees nothing. O(1).
    ///
    /// A child made without `fork`'s handlers, such as by the bare system call `clone`, is not
    /// detected.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.inner.process.is_forked()
    }

    /// Returns the pool of the blocks.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Returns the eviction policy.
    #[must_use]
    pub fn eviction(&self) -> &Eviction {
        &self.inner.eviction
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.inner.shards.len()
    }

    /// Returns the statistics. Takes no lock. O(shards).
    #[must_use]
    pub fn stats(&self) -> KvCacheStats {
        let CacheState { shards, usage, .. } = &*self.inner;
        let mut stats = KvCacheStats {
            blocks: usage.blocks(),
            bytes: usage.bytes(),
            insertion_failures: usage.insertion_failures(),
            ..KvCacheStats::default()
        };
        for shard in shards {
            let (hits, misses) = shard.requested();
            stats.hits += hits;
            stats.misses += misses;
            let counts = &shard.counts;
            stats.insertions += shard.changes.insertions.get();
            stats.replacements += counts.replacements.get();
            stats.evictions += shard.changes.evictions.get();
            stats.removals += counts.removals.get();
            stats.sink_failures += counts.sink_failures.get();
            stats.superseded += counts.superseded.get();
        }
        stats
    }
}

impl<K> Clone for KvCache<K> {
    /// Returns another handle of the same cache.
    fn clone(&self) -> Self {
        KvCache { inner: Arc::clone(&self.inner) }
    }
}

impl<K> fmt::Debug for KvCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("eviction", self.eviction())
            .field("shards", &self.shards())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
