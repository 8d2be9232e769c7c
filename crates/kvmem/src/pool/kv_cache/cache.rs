//! The public face of the cache: [`KvCache`].

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::index::{CacheLimits, Pinned};
use super::source::Source;
use super::state::{EvictionSink, Inner, Spread, Turn};
use super::tier::{CacheInvalidationGuard, InvalidationGuard};
use super::{Eviction, KvCacheBuilder, KvCacheError, KvCacheStats, Lease, Leased, Reservation};
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
/// use kvmem::pool::{KvCache, Pool};
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
    inner: Arc<Inner<K>>,
}

impl<K: Hash + Eq> KvCache<K> {
    /// Returns a cache with no limits but the pool's space, with [`Eviction::Lru`].
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self::builder(pool).build().expect("the usual settings contradict nothing")
    }

    /// Returns a builder of a cache on `pool`, which may have other users too.
    pub fn builder(pool: &Pool) -> KvCacheBuilder<K> {
        KvCacheBuilder::new(pool.clone())
    }

    pub(super) fn with_parts(
        pool: Pool,
        source: Source,
        sink: EvictionSink<K>,
        limits: CacheLimits,
        eviction: &Eviction,
        spread: Spread,
    ) -> Self {
        let inner = Inner::new(pool, source, sink, limits, eviction, spread);
        KvCache { inner: Arc::new(inner) }
    }

    /// Returns the value under `key`, pinned. The value counts as used. O(1). Threads that look up
    /// do not wait for each other, only for threads that change the same shard.
    #[inline]
    #[must_use]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_forked() {
            return None;
        }
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).get(hash, key).map(Pinned)
    }

    /// Returns whether there is a value under `key`. The value does not count as used. O(1).
    #[must_use]
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_forked() {
            return false;
        }
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).contains(hash, key)
    }

    /// Copies `value` into a block and inserts it under `key`, replacing the value of the key if it
    /// has one. Evicts until it fits.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn insert(&self, key: K, value: &[u8]) -> Result<(), KvCacheError> {
        self.insert_with(key, value.len(), |bytes| bytes.copy_from_slice(value))
    }

    /// Inserts as [`insert`](Self::insert) does, and tells the policy that `depth` blocks of the
    /// prefix come before the value. See
    /// [`Reservation::set_depth`].
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn insert_at_depth(&self, key: K, value: &[u8], depth: u32) -> Result<(), KvCacheError> {
        let mut room = self.reserve(key, value.len())?;
        room.set_depth(depth);
        room.bytes_mut().copy_from_slice(value);
        if room.put() { Ok(()) } else { Err(KvCacheError::Forked) }
    }

    /// Inserts a value of `len` bytes that `fill` writes in place. No lock is held while `fill`
    /// runs.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn insert_with(
        &self,
        key: K,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), KvCacheError> {
        let mut room = self.reserve(key, len)?;
        fill(room.bytes_mut());
        if room.put() { Ok(()) } else { Err(KvCacheError::Forked) }
    }

    /// Reserves space for a value of `len` bytes, to be written in place and then
    /// [committed](Reservation::commit). Evicts until it fits: first the value that `key` has, then
    /// the blocks that the policy chooses. Pinned values and values being written stay.
    ///
    /// O(1) for each evicted block and for each pinned block on the way, if the policy's calls are.
    ///
    /// # Errors
    /// [`TooLarge`](KvCacheError::TooLarge) if it can never fit, for which nothing is evicted;
    /// [`NothingToEvict`](KvCacheError::NothingToEvict) if every block was pinned or being written,
    /// and nothing new was committed meanwhile; [`Forked`](KvCacheError::Forked) in a
    /// forked child; [`WrongLength`](KvCacheError::WrongLength) if a
    /// [function that allocates](KvCacheBuilder::with_allocator) returns a block of the wrong
    /// length.
    ///
    /// # Panics
    /// Panics if code of the caller panics: a key's `Hash`, `Eq` or `Drop`, a
    /// [`EvictionPolicy`](super::EvictionPolicy), an eviction callback. The cache stays whole.
    pub fn reserve(&self, key: K, len: usize) -> Result<Reservation<K>, KvCacheError> {
        if self.inner.process.is_forked() {
            return Err(KvCacheError::Forked);
        }
        let hash = self.inner.hasher.hash_one(&key);
        let (block, padding) = self.inner.allocate_charged(hash, &key, len)?;
        let reservation = Reservation::new(Arc::clone(&self.inner), hash, key, block, padding);
        // A sink may have forked. Then the block has no memory here.
        if reservation.is_forked() { Err(KvCacheError::Forked) } else { Ok(reservation) }
    }

    /// Removes the value under `key` and returns it. Its bytes are free when the last pin on it is
    /// dropped. O(1).
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        let mut state = self.inner.state(shard)?;
        self.inner.take_out(shard, &mut state, hash, key)
    }

    /// Removes the value under `key` from the cache and from a lower tier. While `forget` tells the
    /// tier, the key is not [leased](Self::lease), so no thread fetches the value. `forget` runs
    /// under no lock of the cache.
    ///
    /// # Errors
    /// The error of `forget`. The value is then out of the cache, and the key is not leased until
    /// the cache is [cleared](Self::clear_with): a value that the tier may still have does not
    /// come back. A panic of `forget` has the same effect.
    pub fn remove_with<Q: Hash + Eq + ?Sized, E>(
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
                invalidation = InvalidationGuard::new(&self.inner, shard, hash);
                // This marks the values in flight: the sink stores each before `forget`, which then
                // removes it, or not at all.
                self.inner.take_out(shard, &mut state, hash, key)
            }
        };
        forget()?;
        invalidation.told();
        Ok(found)
    }

    /// Requests the right to insert what is fetched from a lower tier: a [`Lease`]. Returns the
    /// [value](Leased::Present) instead if there is one, or [`Leased::Unavailable`] if the lower
    /// tier's value may be old. O(1).
    ///
    /// Take it *before* reading from the lower tier. The call counts neither as a hit nor as a
    /// miss.
    ///
    /// ```
    /// use kvmem::arena::PageSize;
    /// use kvmem::pool::kv_cache::Leased;
    /// use kvmem::pool::{KvCache, Pool};
    ///
    /// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let cache: KvCache<u64> = KvCache::new(&pool);
    ///
    /// let Leased::Lease(lease) = cache.lease(&7) else { panic!("there is nothing under 7") };
    /// let mut room = cache.reserve(7, 3)?;
    /// room.bytes_mut().copy_from_slice(b"old"); // fetched
    /// cache.insert(7, b"new")?; // meanwhile, by another thread
    ///
    /// let superseded = room.commit_leased(lease).expect_err("the lease is broken");
    /// assert_eq!(superseded.found.expect("there is a value").bytes(), b"new");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Leased<K>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let Some(mut state) = self.inner.state(self.inner.shard(hash)) else {
            return Leased::Unavailable;
        };
        if let Some(held) = state.used(hash, key) {
            return Leased::Present(Pinned(held));
        }
        match state.leases.lease(hash) {
            Some(number) => Leased::Lease(Lease::new(Arc::clone(&self.inner), hash, number)),
            None => Leased::Unavailable,
        }
    }

    /// Removes every value, shard after shard. Values inserted into a shard after its turn stay.
    /// Pins stay valid. O(blocks held).
    pub fn clear(&self) {
        for shard in &self.inner.shards {
            let Some(mut state) = self.inner.state(shard) else { return };
            self.inner.empty(shard, &mut state);
        }
    }

    /// Removes every value from the cache and, by `forget`, from a lower tier. Meanwhile no key is
    /// leased. Afterwards all keys are leased again, also those whose leases were unavailable
    /// because an [eviction callback](KvCacheBuilder::on_evict) or a `forget` had failed.
    ///
    /// # Errors
    /// The error of `forget`. The values are then out of the cache, and no key is leased until a
    /// later call succeeds.
    pub fn clear_with<E>(&self, forget: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut invalidation = CacheInvalidationGuard::new();
        for shard in &self.inner.shards {
            let Some(mut state) = self.inner.state(shard) else { break };
            invalidation.also(&self.inner, shard, state.leases.block_all());
            self.inner.empty(shard, &mut state);
        }
        forget()?;
        invalidation.told();
        Ok(())
    }

    /// Evicts until at most `bytes` are held or no block can be evicted. Returns the bytes held
    /// then. With this a thread can make space ahead of time.
    pub fn evict_to(&self, bytes: u64) -> u64 {
        let inner = &self.inner;
        let mut turn = Turn::default();
        while inner.usage.bytes() > bytes && inner.evict(&mut turn, None) {}
        inner.usage.bytes()
    }

    /// Verifies the invariants, numbered in `shard.rs`, while no other thread is in the cache.
    /// O(blocks), for tests.
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
        let charged = (self.len(), self.bytes());
        if charged.0 < blocks || charged.1 < bytes {
            let what =
                format!("{blocks} blocks of {bytes} bytes are held, {charged:?} are charged");
            return Err(CheckError { invariant: 4, what });
        }
        Ok(())
    }
}

impl<K> KvCache<K> {
    /// Returns the number of blocks held, including those being written.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.usage.blocks()
    }

    /// Returns whether no block is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes held, including those being written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.usage.bytes()
    }

    /// Returns whether this process is a forked child of the one that made the cache. The memory
    /// and the values stay with the parent. In the child, look-ups and removals find nothing,
    /// no lease is given, insertions fail with [`Forked`](KvCacheError::Forked), and nothing is
    /// evicted. [`len`](Self::len), [`bytes`](Self::bytes) and [`stats`](Self::stats) return the
    /// values at the time of the fork. No call waits for a lock that a thread of the parent held.
    /// A drop in the child frees nothing. O(1).
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
        let Inner { shards, usage, .. } = &*self.inner;
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
            let others = &shard.others;
            stats.insertions += others.insertions.get();
            stats.replacements += others.replacements.get();
            stats.evictions += others.evictions.get();
            stats.removals += others.removals.get();
            stats.sink_failures += others.sink_failures.get();
            stats.superseded += others.superseded.get();
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
