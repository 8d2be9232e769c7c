//! *Get*: look-ups in memory and in the lower tier.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::slice;
use std::time::Instant;

use super::fetching::Fetching;
use crate::cache::state::LowerTier;
use crate::cache::{KvCache, Pinned};

impl<K: Hash + Eq + Clone> KvCache<K> {
    /// Returns the value under `key`, pinned: from memory, or else from the lower tier, which is
    /// fetched and committed. The value counts as used. `None` where neither has a value, where the
    /// tier's value is damaged, and where no space could be made for it.
    ///
    /// A value in memory costs what [`get_in_memory`](Self::get_in_memory) costs, and so does every
    /// key without a lower tier. Otherwise the call blocks while the tier reads, as
    /// [`get_batch`](Self::get_batch) does.
    #[inline]
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<Pinned<K>>
    where
        K: Borrow<Q> + From<Q::Owned>,
        Q: Hash + Eq + ToOwned + ?Sized,
    {
        let found = self.get_in_memory(key);
        if found.is_some() || self.inner.lower_tier.is_none() {
            return found;
        }
        let owned = K::from(key.to_owned());
        let found = self.fetch(&owned);
        // Before the result is returned: a panic of its `Drop` would leak a result on its way.
        drop(owned);
        found
    }

    /// Fetches the value of a key that memory lacks.
    #[inline(never)]
    fn fetch(&self, key: &K) -> Option<Pinned<K>> {
        Fetching::of(self, slice::from_ref(key), vec![None]).wait().pop().flatten()
    }

    /// Returns the values of several keys, pinned: those in memory, and those that the lower tier
    /// has, which are fetched together and committed. `None` where neither has a value, where the
    /// tier's value is damaged, and where no space could be made for it.
    ///
    /// The call blocks while the tier reads. Threads that want the same value at once share one
    /// read of it. A value that was inserted or removed meanwhile is never replaced by an older one
    /// of the tier. O(keys), besides what is read and evicted.
    ///
    /// ```
    /// # use kvmem::arena::PageSize;
    /// # use kvmem::cache::KvCache;
    /// # use kvmem::pool::Pool;
    /// # let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let cache: KvCache<u64> = KvCache::new(&pool);
    /// cache.insert(7, b"seven")?;
    /// // Without a lower tier these are the values in memory.
    /// let found = cache.get_batch(&[7, 8]);
    /// assert!(found[0].is_some() && found[1].is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get_batch(&self, keys: &[K]) -> Vec<Option<Pinned<K>>> {
        let found: Vec<_> = keys.iter().map(|key| self.get_in_memory(key)).collect();
        if self.inner.lower_tier.is_none() || found.iter().all(Option::is_some) {
            return found;
        }
        Fetching::of(self, keys, found).wait()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KvCache<K> {
    /// Begins to fetch from the lower tier what memory lacks of several keys, and returns at once.
    /// A thread of the cache reads; the first such call starts it, and the drop of the cache ends
    /// it. A later [`get_batch`](Self::get_batch) of the same keys shares the reads.
    ///
    /// It is the way to have the values of a request in memory before they are used.
    /// [`prefetch`](Self::prefetch) is another thing: it moves what is in memory into the
    /// processor's caches.
    ///
    /// ```
    /// # use kvmem::arena::PageSize;
    /// # use kvmem::cache::KvCache;
    /// # use kvmem::pool::Pool;
    /// # let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let cache: KvCache<u64> = KvCache::new(&pool);
    /// cache.insert(7, b"seven")?;
    /// let fetching = cache.start_fetch(&[7, 8]);
    /// // … the rest of the request is prepared …
    /// let found = fetching.wait();
    /// assert!(found[0].is_some() && found[1].is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_fetch(&self, keys: &[K]) -> Fetching<K> {
        let found = keys.iter().map(|key| self.get_in_memory(key)).collect();
        let fetching = Fetching::of(self, keys, found);
        if !fetching.ids().is_empty() {
            self.read_in_background(fetching.ids());
        }
        fetching
    }

    /// Returns what [`get_batch`](Self::get_batch) returns, as far as it is there at
    /// `deadline`. Reads that have begun by then end in the background, and their values are in the
    /// cache afterwards. Those that have not are cancelled.
    #[must_use]
    pub fn get_batch_until(&self, keys: &[K], deadline: Instant) -> Vec<Option<Pinned<K>>> {
        let fetching = self.start_fetch(keys);
        fetching.wait_until(deadline);
        fetching.into_values()
    }
}

impl<K: Hash + Eq> KvCache<K> {
    /// Returns whether there is a value under `key`, in memory or in the lower tier. The value does
    /// not count as used. O(1) where memory has it; otherwise it queries the tier, and may wait for
    /// a network. A value that the cache does not fetch, because the tier may have an old one, does
    /// not count.
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q> + From<Q::Owned>,
        Q: Hash + Eq + ToOwned + ?Sized,
    {
        self.contains_in_memory(key) || self.is_in_tier(key)
    }

    /// Returns whether the lower tier has a value that a look-up would fetch.
    fn is_in_tier<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q> + From<Q::Owned>,
        Q: Hash + Eq + ToOwned + ?Sized,
    {
        let below = self.inner.lower_tier.as_ref().filter(|_| !self.is_forked());
        below.is_some_and(|LowerTier { tier, key_bytes }| {
            let hash = self.inner.hasher.hash_one(key);
            // An expired value in memory is later than the one of the tier.
            let is_open = self.inner.state(self.inner.shard(hash)).is_some_and(|state| {
                state.find(hash, key).is_none() && state.leases.may_lease(hash)
            });
            is_open && tier.ask(&[&key_bytes(&K::from(key.to_owned()))]).pop().flatten().is_some()
        })
    }
}

impl<K> KvCache<K> {
    /// Returns the number of values in memory, including those being written, and in the lower
    /// tier, each value once. Without a tier it is [`len_in_memory`](Self::len_in_memory).
    ///
    /// With a tier it is exact while no thread changes the cache or the tier, and while the tier
    /// [knows](crate::tier::Tier::values) how many values it has: values of a tier that does not
    /// know, such as a cluster, are not counted. It queries the tier about each key in memory:
    /// O(values in memory).
    #[must_use]
    pub fn len(&self) -> u64 {
        let below = self.inner.lower_tier.as_ref().filter(|_| !self.is_forked());
        self.len_in_memory() + below.map_or(0, |below| self.len_in_tier_alone(below))
    }

    /// Returns the number of values of the lower tier whose keys have none in memory.
    fn len_in_tier_alone(&self, LowerTier { tier, key_bytes }: &LowerTier<K>) -> u64 {
        let mut alone = tier.values();
        for shard in &self.inner.shards {
            if alone == 0 {
                return 0;
            }
            let keys = shard.map_keys(|key| key_bytes(key).into_owned());
            if !keys.is_empty() {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                alone = alone.saturating_sub(tier.ask(&keys).iter().flatten().count() as u64);
            }
        }
        alone
    }

    /// Returns whether neither memory nor the lower tier has a value. See [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
