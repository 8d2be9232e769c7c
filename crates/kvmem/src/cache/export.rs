//! *Export*: passes the figures of caches to the `metrics` facade.

use super::KvCache;
use crate::pool::observe::{Exporter, publish};

impl Exporter {
    /// Adds a cache, under the name of its pool and as `cache`. This does not add its pool.
    pub fn cache<K: Send + Sync + 'static>(self, cache: &KvCache<K>) -> Exporter {
        self.cache_called("cache", cache)
    }

    /// Adds a cache under a name of its own, for a pool with several caches. See
    /// [`cache`](Self::cache).
    pub fn cache_called<K: Send + Sync + 'static>(
        self,
        name: &str,
        cache: &KvCache<K>,
    ) -> Exporter {
        let (name, cache) = (name.to_owned(), cache.clone());
        self.also(move || {
            publish(&cache.stats(), &[("pool", cache.pool().name()), ("cache", &name)]);
        })
    }
}
