//! *Cache*: keyed blocks on a pool, and how room is made for another.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::evicted::{Handing, Taker};
use super::forgetting::{Forgetting, ForgettingAll};
use super::held::{Held, Pinned};
use super::ledger::{Ledger, Limits};
use super::shard::{Books, Desk, Shard};
use super::source::Source;
use super::{Eviction, KvCacheBuilder, KvCacheError, KvCacheStats, Lease, Leased, Reservation};
use crate::offset::{AllocError, CheckError};
use crate::pool::{Block, Pool, PoolError};
use crate::sync::{AtomicBool, Ordering, Writing};

/// Values under keys, in blocks of a [`Pool`]: found by any thread, pinned while they are used, evicted when room is needed.
///
/// Cheap to clone; clones are the same cache. Pins, reservations and blocks outlive it.
///
/// A key is dropped just before the bytes that it was put in with are free: what it does then is done before another can have them.
/// That may be under a lock of the cache's, which it must not call.
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::pool::{KvCache, Pool};
///
/// let (pool, _) = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
/// let cache: KvCache<u64> = KvCache::new_on(&pool);
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

/// What clones and reservations share.
pub(super) struct Inner<K> {
    shards: Box<[Shard<K>]>,
    hasher: RandomState,
    pool: Pool,
    source: Source,
    taker: Taker<K>,
    eviction: Eviction,
    pub(super) ledger: Ledger,
    /// Somebody is evicting down to the low watermark.
    trimming: AtomicBool,
}

impl<K: Hash + Eq> KvCache<K> {
    /// A cache with no limits but the pool's room, that evicts what was least recently used.
    #[must_use]
    pub fn new_on(pool: &Pool) -> Self {
        Self::builder(pool).build().expect("the usual settings contradict nothing")
    }

    /// A cache on `pool`, which may have other users too.
    pub fn builder(pool: &Pool) -> KvCacheBuilder<K> {
        KvCacheBuilder::new(pool.clone())
    }

    pub(super) fn new(
        pool: Pool,
        source: Source,
        taker: Taker<K>,
        limits: Limits,
        shards: usize,
        eviction: &Eviction,
        exact: bool,
    ) -> Self {
        KvCache {
            inner: Arc::new(Inner {
                shards: (0..shards).map(|_| Shard::new(eviction.make(), exact)).collect(),
                hasher: RandomState::default(),
                pool,
                source,
                taker,
                eviction: eviction.clone(),
                ledger: Ledger::new(limits),
                trimming: AtomicBool::new(false),
            }),
        }
    }

    /// The value under `key`, pinned; it counts as used. O(1). Threads that look up do not wait for each other, but for those that
    /// change the same shard.
    #[inline]
    #[must_use]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).get(hash, key).map(Pinned)
    }

    /// Whether there is a value under `key`. It does not count as used. O(1).
    #[must_use]
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        self.inner.shard(hash).contains(hash, key)
    }

    /// Copies `value` into a block and puts it under `key`, in the place of what is there. Evicts until it fits.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn insert(&self, key: K, value: &[u8]) -> Result<(), KvCacheError> {
        self.insert_with(key, value.len(), |bytes| bytes.copy_from_slice(value))
    }

    /// As [`insert`](Self::insert), for a value of `len` bytes that `fill` writes in place. No lock is held meanwhile.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn insert_with(&self, key: K, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), KvCacheError> {
        let mut room = self.reserve(key, len)?;
        fill(room.bytes_mut());
        room.put();
        Ok(())
    }

    /// Makes room for a value of `len` bytes, to be written in place and then [committed](Reservation::commit). Evicts until it
    /// fits: the value that `key` has, if need be, and then what the policy says. What is pinned or being written stays.
    ///
    /// O(1) for each block that is evicted, and for each pinned one that is met, if the policy needs no more.
    ///
    /// # Errors
    /// [`TooLarge`](KvCacheError::TooLarge) if it can never fit, for which nothing is evicted;
    /// [`NothingToEvict`](KvCacheError::NothingToEvict) if all that is held was found pinned or being written, while nothing new was
    /// committed.
    pub fn reserve(&self, key: K, len: usize) -> Result<Reservation<K>, KvCacheError> {
        let hash = self.inner.hasher.hash_one(&key);
        let block = self.inner.room(hash, &key, len)?;
        Ok(Reservation::new(Arc::clone(&self.inner), hash, key, block))
    }

    /// Takes the value under `key` out, and returns it: its bytes are free when that, and every other pin on it, is dropped. O(1).
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        self.inner.take_out(shard, &mut shard.books(), hash, key)
    }

    /// As [`remove`](Self::remove), where a lower tier has to forget the value, too. While `forget` tells it, the key is not
    /// [leased](Self::lease), so nobody fetches what is to be forgotten. It runs under no lock of the cache's.
    ///
    /// # Errors
    /// What `forget` answers. The value is out of the cache then, and the key is not leased any more, until the cache is [cleared](Self::clear_with): so what the
    /// lower tier may still have does not come back. The same goes for a panic.
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
        let found = {
            let mut books = shard.books();
            books.leases.bar(hash);
            forgetting = Forgetting::new(shard, hash);
            // What is on its way is marked by this: so it is taken before `forget`, which sees it, or not at all.
            self.inner.take_out(shard, &mut books, hash, key)
        };
        forget()?;
        forgetting.told();
        Ok(found)
    }

    /// Asks for the right to put in what is fetched from a lower tier: a [`Lease`]. Refused if there is a value, which is then what is
    /// [found](Leased::Present), or if what the lower tier has may be [old](Leased::Busy). O(1).
    ///
    /// Take it *before* anything is asked of the lower tier. It counts for neither a hit nor a miss.
    ///
    /// ```
    /// use kvmem::arena::PageSize;
    /// use kvmem::pool::kv_cache::Leased;
    /// use kvmem::pool::{KvCache, Pool};
    ///
    /// let (pool, _) = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let cache: KvCache<u64> = KvCache::new_on(&pool);
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
        let mut books = self.inner.shard(hash).books();
        if let Some(held) = books.used(hash, key) {
            return Leased::Present(Pinned(held));
        }
        match books.leases.lease(hash) {
            Some(number) => Leased::Lease(Lease::new(Arc::clone(&self.inner), hash, number)),
            None => Leased::Busy,
        }
    }

    /// Takes every value out that is there when its shard is come to. Pins stay good. O(blocks held).
    pub fn clear(&self) {
        for shard in &self.inner.shards {
            self.inner.empty(shard, &mut shard.books());
        }
    }

    /// As [`clear`](Self::clear), where a lower tier has to forget all, too: as [`remove_with`](Self::remove_with). Keys whose leases are refused because a
    /// [taker](KvCacheBuilder::on_evict) failed, or was not told, are leased again.
    ///
    /// # Errors
    /// What `forget` answers. The values are out then, and no key is leased any more, until this succeeds.
    pub fn clear_with<E>(&self, forget: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut forgetting = ForgettingAll::new();
        for shard in &self.inner.shards {
            let mut books = shard.books();
            forgetting.also(shard, books.leases.bar_all());
            self.inner.empty(shard, &mut books);
        }
        forget()?;
        forgetting.told();
        Ok(())
    }

    /// Evicts until at most `bytes` are held, or nothing is left that can go; returns how many bytes are held then. With this a thread
    /// of the caller's can make room ahead of time.
    pub fn evict_to(&self, bytes: u64) -> u64 {
        let inner = &self.inner;
        let mut turn = Turn::default();
        while inner.ledger.bytes() > bytes && inner.evict(&mut turn, None) {}
        inner.ledger.bytes()
    }

    /// Verifies the invariants, numbered in `shard.rs`, while no other thread is in the cache. O(blocks), for tests.
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library, or of the key's `Hash` and `Eq`.
    pub fn check(&self) -> Result<(), CheckError> {
        let (mut blocks, mut bytes) = (0, 0);
        for shard in &self.inner.shards {
            let books = shard.books();
            bytes += books.check()?;
            blocks += books.len() as u64;
        }
        let charged = (self.len(), self.bytes());
        if charged.0 < blocks || charged.1 < bytes {
            let what = format!("{blocks} blocks of {bytes} bytes are held, {charged:?} are charged");
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
            refusals: ledger.refusals(),
            ..KvCacheStats::default()
        };
        for shard in shards {
            let (hits, misses) = shard.asked();
            stats.hits += hits;
            stats.misses += misses;
            let others = &shard.others;
            stats.insertions += others.insertions.get();
            stats.replacements += others.replacements.get();
            stats.evictions += others.evictions.get();
            stats.removals += others.removals.get();
            stats.not_taken += others.not_taken.get();
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

/// How far an insertion has come in its search for what can go.
#[derive(Debug, Default)]
struct Turn {
    /// The shard that gives the next block.
    next: usize,
    /// Whether the value under the insertion's own key has been thought of.
    begun: bool,
}

impl<K> Inner<K> {
    fn place(&self, hash: u64) -> usize {
        // From the middle: the index of a shard uses the lowest bits and the highest.
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    pub(super) fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[self.place(hash)]
    }
}

impl<K: Hash + Eq> Inner<K> {
    /// A block of `len` bytes that has been charged.
    fn room(&self, hash: u64, key: &K, len: usize) -> Result<Block, KvCacheError> {
        let asked = len as u64;
        if asked == 0 {
            return Err(KvCacheError::Empty);
        }
        let limit = self.ledger.limits.bytes;
        if asked > limit {
            return Err(KvCacheError::TooLarge { asked, limit });
        }
        let mut turn = Turn { next: self.place(hash), begun: false };
        let own = Some((hash, key));
        // The pool first: it knows at once of what can never be.
        let block = self.until(&mut turn, own, asked, || match self.source.allocate(&self.pool, len) {
            Ok(block) => Ok(Some(block)),
            Err(PoolError::Refused(AllocError::NoRoom { .. } | AllocError::BooksFull { .. })) => Ok(None),
            Err(PoolError::Refused(AllocError::TooLarge { asked, limit })) => {
                Err(KvCacheError::TooLarge { asked, limit })
            }
            Err(error) => Err(KvCacheError::Pool(error)),
        })?;
        // What is credited later is the length of what was got.
        let got = block.len() as u64;
        self.until(&mut turn, own, got, || Ok(self.ledger.charge(got).then_some(())))?;
        Ok(block)
    }

    /// Attempts and evicts in turn, until an attempt succeeds or nothing can go.
    fn until<T>(
        &self,
        turn: &mut Turn,
        own: Option<(u64, &K)>,
        asked: u64,
        mut attempt: impl FnMut() -> Result<Option<T>, KvCacheError>,
    ) -> Result<T, KvCacheError> {
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            let commits = self.ledger.commits();
            if self.evict(turn, own) {
                continue;
            }
            // What others evicted while their shards were passed has been freed by now, as that is done under their locks.
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            // What others took and have committed behind this search can be evicted.
            if self.ledger.commits() == commits {
                self.ledger.refused();
                let (blocks, bytes) = (self.ledger.blocks(), self.ledger.bytes());
                return Err(KvCacheError::NothingToEvict { asked, blocks, bytes });
            }
        }
    }

    /// Takes the value under `key` out.
    fn take_out<Q: Hash + Eq + ?Sized>(
        &self,
        shard: &Shard<K>,
        books: &mut Books<K>,
        hash: u64,
        key: &Q,
    ) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let held = books.remove(hash, key)?;
        shard.others.removals.more();
        self.ledger.credit(held.len_bytes());
        Some(Pinned(held))
    }

    /// Takes every value of a shard out.
    fn empty(&self, shard: &Shard<K>, books: &mut Books<K>) {
        for held in books.drain() {
            shard.others.removals.more();
            self.let_go(held);
        }
    }

    /// Evicts one block: the one under the own key, and then one of each shard in turn. False if a whole round over the shards
    /// found nothing that can go.
    fn evict(&self, turn: &mut Turn, own: Option<(u64, &K)>) -> bool {
        if let Some((hash, key)) = own.filter(|_| !turn.begun) {
            turn.begun = true;
            let shard = self.shard(hash);
            let mut books = shard.books();
            if let Some(held) = books.remove_unpinned(hash, key) {
                shard.others.evictions.more();
                self.evicted(shard, books, held);
                return true;
            }
        }
        for _ in 0..self.shards.len() {
            let shard = &self.shards[turn.next & (self.shards.len() - 1)];
            turn.next = turn.next.wrapping_add(1);
            let mut books = shard.books();
            if let Some(held) = books.evict() {
                shard.others.evictions.more();
                self.evicted(shard, books, held);
                return true;
            }
        }
        false
    }

    /// Puts a charged block in.
    pub(super) fn commit(&self, hash: u64, held: Arc<Held<K>>) {
        let shard = self.shard(hash);
        let mut books = shard.books();
        let old = books.put(hash, held);
        shard.others.insertions.more();
        if let Some(old) = old {
            shard.others.replacements.more();
            self.let_go(old);
        }
        self.committed(hash, books);
    }

    /// Puts a charged block in if the lease of this number is unbroken; else answers what is there.
    pub(super) fn commit_leased(
        &self,
        hash: u64,
        held: Arc<Held<K>>,
        number: u64,
    ) -> Result<(), Option<Pinned<K>>> {
        let shard = self.shard(hash);
        let mut books = shard.books();
        books.redeem(hash, &held.key, number).map_err(|there| {
            shard.others.superseded.more();
            there.map(Pinned)
        })?;
        books.put(hash, held);
        shard.others.insertions.more();
        self.committed(hash, books);
        Ok(())
    }

    /// A block has been put in.
    #[inline]
    fn committed(&self, hash: u64, books: Writing<'_, Books<K>, Desk>) {
        self.ledger.committed();
        drop(books);
        if self.ledger.bytes() > self.ledger.limits.high {
            self.trim(self.place(hash));
        }
    }

    /// Evicts down to the low watermark, unless another thread is at it.
    #[cold]
    fn trim(&self, from: usize) {
        // Acquire pairs with the Release in `Trimming`: one at a time.
        if self.trimming.swap(true, Ordering::Acquire) {
            return;
        }
        let _trimming = Trimming(&self.trimming);
        let mut turn = Turn { next: from, begun: true };
        while self.ledger.bytes() > self.ledger.limits.low && self.evict(&mut turn, None) {}
    }

    /// A block has left its index to make room. Without a taker it goes under the lock of its shard, as in `let_go`; a taker is called without, and
    /// until it has returned the key is not leased.
    fn evicted(&self, shard: &Shard<K>, mut books: Writing<'_, Books<K>, Desk>, held: Arc<Held<K>>) {
        let Some(taker) = &self.taker else { return self.let_go(held) };
        let number = books.hand_over(&held);
        self.ledger.credit(held.len_bytes());
        drop(books);
        let mut handing = Handing::new(shard, number);
        handing.taken = taker(Pinned(held));
    }

    /// A block has left its index. Called under the lock of its shard: whoever comes to the shard afterwards finds the bytes
    /// free, unless they are pinned.
    fn let_go(&self, held: Arc<Held<K>>) {
        let len = held.len_bytes();
        drop(held);
        self.ledger.credit(len);
    }
}

/// Lets others trim again, also after a panic of a policy.
struct Trimming<'a>(&'a AtomicBool);

impl Drop for Trimming<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `trim`.
        self.0.store(false, Ordering::Release);
    }
}
