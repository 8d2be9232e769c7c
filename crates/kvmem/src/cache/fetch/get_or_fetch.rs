//! *Get or fetch*: look-ups in memory and in the lower tier.

use std::hash::Hash;
use std::time::Instant;

use super::fetching::Fetching;
use crate::cache::{KvCache, Pinned};

impl<K: Hash + Eq + Clone> KvCache<K> {
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
    /// let found = cache.get_or_fetch(&[7, 8]);
    /// assert!(found[0].is_some() && found[1].is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get_or_fetch(&self, keys: &[K]) -> Vec<Option<Pinned<K>>> {
        let found: Vec<_> = keys.iter().map(|key| self.get(key)).collect();
        if self.inner.lower_tier.is_none() || found.iter().all(Option::is_some) {
            return found;
        }
        Fetching::of(self, keys, found).wait()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KvCache<K> {
    /// Begins to fetch from the lower tier what memory lacks of several keys, and returns at once.
    /// A thread of the cache reads; the first such call starts it, and the drop of the cache ends
    /// it. A later [`get_or_fetch`](Self::get_or_fetch) of the same keys shares the reads.
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
        let found = keys.iter().map(|key| self.get(key)).collect();
        let fetching = Fetching::of(self, keys, found);
        if !fetching.ids().is_empty() {
            self.read_in_background(fetching.ids());
        }
        fetching
    }

    /// Returns what [`get_or_fetch`](Self::get_or_fetch) returns, as far as it is there at
    /// `deadline`. Reads that have begun by then end in the background, and their values are in the
    /// cache afterwards. Those that have not are cancelled.
    #[must_use]
    pub fn get_or_fetch_until(&self, keys: &[K], deadline: Instant) -> Vec<Option<Pinned<K>>> {
        let fetching = self.start_fetch(keys);
        fetching.wait_until(deadline);
        fetching.into_values()
    }
}
