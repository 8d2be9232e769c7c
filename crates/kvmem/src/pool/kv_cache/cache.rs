//! *Cache*: keyed blocks on a pool: the face.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::evicted::EvictionSink;
use super::forgetting::{Forgetting, ForgettingAll};
use super::held::Pinned;
use super::ledger::Limits;
use super::room::{Inner, Spread, Turn};
use super::source::Source;
use super::{Eviction, KvCacheBuilder, KvCacheError, KvCacheStats, Lease, Leased, Reservation};
use crate::offset::CheckError;
use crate::pool::Pool;

/// Values under keys, in blocks of a [`Pool`]: found by any thread, pinned while they are used,
/// evicted when room is needed.
///
/// Cheap to clone; clones are the same cache. Pins, reservations and blocks outlive it.
///
/// A key is dropped just before the bytes that it was put in with are free: what it does then is
/// done before another can have them. That may be under a lock of the cache's, which it must not
/// call.
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::pool::{KvCache, Pool};
///
/// let (pool, _) = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
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
    /// A cache with no limits but the pool's room, that evicts what was least recently used.
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self::builder(pool).build().expect("the usual settings contradict nothing")
    }

    /// A cache on `pool`, which may have other users too.
    pub fn builder(pool: &Pool) -> KvCacheBuilder<K> {
        KvCacheBuilder::new(pool.clone())
    }

    pub(super) fn with_parts(
        pool: Pool,
        source: Source,
        sink: EvictionSink<K>,
        limits: Limits,
        eviction: &Eviction,
        spread: Spread,
    ) -> Self {
        let inner = Inner::new(pool, source, sink, limits, eviction, spread);
        KvCache { inner: Arc::new(inner) }
    }

    /// The value under `key`, pinned; it counts as used. O(1). Threads that look up do not wait for
    /// each other, but for those that change the same shard.
    #[inline]
    #[must_use]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_gone() {
            return None;
        }
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).get(hash, key).map(Pinned)
    }

    /// Whether there is a value under `key`. It does not count as used. O(1).
    #[must_use]
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        if self.inner.process.is_gone() {
            return false;
        }
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).contains(hash, key)
    }

    /// Copies `value` into a block and puts it under `key`, in the place of what is there. Evicts
    /// until it fits.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn insert(&self, key: K, value: &[u8]) -> Result<(), KvCacheError> {
        self.insert_with(key, value.len(), |bytes| bytes.copy_from_slice(value))
    }

    /// Copies `value` into a block and puts it under `key`, as [`insert`](Self::insert) does, and
    /// says that `depth` blocks of its prefix come before it. See
    /// [`Reservation::set_depth`].
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn insert_at_depth(&self, key: K, value: &[u8], depth: u32) -> Result<(), KvCacheError> {
        let mut room = self.reserve(key, value.len())?;
        room.set_depth(depth);
        room.bytes_mut().copy_from_slice(value);
        if room.put() { Ok(()) } else { Err(KvCacheError::Forked) }
    }

    /// As [`insert`](Self::insert), for a value of `len` bytes that `fill` writes in place. No lock
    /// is held meanwhile.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
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

    /// Makes room for a value of `len` bytes, to be written in place and then
    /// [committed](Reservation::commit). Evicts until it fits: the value that `key` has, if
    /// need be, and then what the policy says. What is pinned or being written stays.
    ///
    /// O(1) for each block that is evicted, and for each pinned one that is met, if the policy
    /// needs no more.
    ///
    /// # Errors
    /// [`TooLarge`](KvCacheError::TooLarge) if it can never fit, for which nothing is evicted;
    /// [`NothingToEvict`](KvCacheError::NothingToEvict) if all that is held was found pinned or
    /// being written, while nothing new was committed; [`Forked`](KvCacheError::Forked) in a
    /// forked child; [`WrongLength`](KvCacheError::WrongLength) if a
    /// [way to allocate](KvCacheBuilder::with_allocator) of the caller's returns what does not fit.
    ///
    /// # Panics
    /// If code of the caller's does: a key's `Hash`, `Eq` or `Drop`, a [`Policy`](super::Policy), a
    /// taker. The cache stays whole.
    pub fn reserve(&self, key: K, len: usize) -> Result<Reservation<K>, KvCacheError> {
        if self.inner.process.is_gone() {
            return Err(KvCacheError::Forked);
        }
        let hash = self.inner.hasher.hash_one(&key);
        let (block, padding) = self.inner.room(hash, &key, len)?;
        let reservation = Reservation::new(Arc::clone(&self.inner), hash, key, block, padding);
        // A taker may have forked. Then the block has no memory here.
        if reservation.is_forked() { Err(KvCacheError::Forked) } else { Ok(reservation) }
    }

    /// Takes the value under `key` out, and returns it: its bytes are free when that, and every
    /// other pin on it, is dropped. O(1).
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        let mut books = self.inner.books(shard)?;
        self.inner.take_out(shard, &mut books, hash, key)
    }

    /// As [`remove`](Self::remove), where a lower tier has to forget the value, too. While `forget`
    /// tells it, the key is not [leased](Self::lease), so nobody fetches what is to be
    /// forgotten. It runs under no lock of the cache's.
    ///
    /// # Errors
    /// What `forget` answers. The value is out of the cache then, and the key is not leased any
    /// more, until the cache is [cleared](Self::clear_with): so what the lower tier may still
    /// have does not come back. The same goes for a panic.
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
        // Ends by taking the lock, so after the lock has been let go of.
        let forgetting;
        let found = match self.inner.books(shard) {
            // In a forked child there is no value, and no lease to refuse.
            None => return forget().map(|()| None),
            Some(mut books) => {
                books.leases.bar(hash);
                forgetting = Forgetting::new(&self.inner, shard, hash);
                // What is on its way is marked by this: so it is taken before `forget`, which sees
                // it, or not at all.
                self.inner.take_out(shard, &mut books, hash, key)
            }
        };
        forget()?;
        forgetting.told();
        Ok(found)
    }

    /// Asks for the right to put in what is fetched from a lower tier: a [`Lease`]. Refused if
    /// there is a value, which is then what is [found](Leased::Present), or if what the lower
    /// tier has may be [old](Leased::Unavailable). O(1).
    ///
    /// Take it *before* anything is asked of the lower tier. It counts for neither a hit nor a
    /// miss.
    ///
    /// ```
    /// use kvmem::arena::PageSize;
    /// use kvmem::pool::kv_cache::Leased;
    /// use kvmem::pool::{KvCache, Pool};
    ///
    /// let (pool, _) = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
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
        let Some(mut books) = self.inner.books(self.inner.shard(hash)) else { return Leased::Unavailable };
        if let Some(held) = books.used(hash, key) {
            return Leased::Present(Pinned(held));
        }
        match books.leases.lease(hash) {
            Some(number) => Leased::Lease(Lease::new(Arc::clone(&self.inner), hash, number)),
            None => Leased::Unavailable,
        }
    }

    /// Takes every value out that is there when its shard is come to. Pins stay good. O(blocks
    /// held).
    pub fn clear(&self) {
        for shard in &self.inner.shards {
            let Some(mut books) = self.inner.books(shard) else { return };
            self.inner.empty(shard, &mut books);
        }
    }

    /// As [`clear`](Self::clear), where a lower tier has to forget all, too: as
    /// [`remove_with`](Self::remove_with). Keys whose leases are refused because a
    /// [taker](KvCacheBuilder::on_evict) failed, or was not told, are leased again.
    ///
    /// # Errors
    /// What `forget` answers. The values are out then, and no key is leased any more, until this
    /// succeeds.
    pub fn clear_with<E>(&self, forget: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut forgetting = ForgettingAll::new();
        for shard in &self.inner.shards {
            let Some(mut books) = self.inner.books(shard) else { break };
            forgetting.also(&self.inner, shard, books.leases.bar_all());
            self.inner.empty(shard, &mut books);
        }
        forget()?;
        forgetting.told();
        Ok(())
    }

    /// Evicts until at most `bytes` are held, or nothing is left that can go; returns how many
    /// bytes are held then. With this a thread of the caller's can make room ahead of time.
    pub fn evict_to(&self, bytes: u64) -> u64 {
        let inner = &self.inner;
        let mut turn = Turn::default();
        while inner.ledger.bytes() > bytes && inner.evict(&mut turn, None) {}
        inner.ledger.bytes()
    }

    /// Verifies the invariants, numbered in `shard.rs`, while no other thread is in the cache.
    /// O(blocks), for tests.
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library, or of the key's `Hash` and `Eq`. In a forked child there is nothing to verify.
    pub fn check(&self) -> Result<(), CheckError> {
        let (mut blocks, mut bytes) = (0, 0);
        for shard in &self.inner.shards {
            let Some(books) = self.inner.books(shard) else { return Ok(()) };
            bytes += books.check()?;
            blocks += books.len() as u64;
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
    /// Blocks held, those being written included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.ledger.blocks()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, those being written included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.ledger.bytes()
    }

    /// Whether this process is a forked child of the one that made the cache. The memory stays with
    /// the parent, and so do the values: in the child look-ups and removals find nothing, no
    /// lease is given, insertions fail with [`Forked`](KvCacheError::Forked), and nothing is
    /// evicted. [`len`](Self::len), [`bytes`](Self::bytes) and [`stats`](Self::stats) return
    /// what they did at the fork. No call waits for a lock that a thread of the parent held. What
    /// the child drops frees nothing. O(1).
    ///
    /// A child made without `fork`'s handlers, such as by the bare system call `clone`, is not told
    /// from its parent.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.inner.process.is_gone()
    }

    /// The pool that the blocks are of.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Which blocks go first.
    #[must_use]
    pub fn eviction(&self) -> &Eviction {
        &self.inner.eviction
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.inner.shards.len()
    }

    /// Figures. Takes no lock. O(shards).
    #[must_use]
    pub fn stats(&self) -> KvCacheStats {
        let Inner { shards, ledger, .. } = &*self.inner;
        let mut stats = KvCacheStats {
            blocks: ledger.blocks(),
            bytes: ledger.bytes(),
            insertion_failures: ledger.insertion_failures(),
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
    /// The same cache once more.
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
