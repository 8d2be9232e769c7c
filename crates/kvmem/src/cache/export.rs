//! *Export*: passes the figures of caches to the `metrics` facade.

use metrics::Label;

use super::{KvCache, KvCacheStats};
use crate::pool::observe::instruments::{pool_label, the_counter, the_gauge};
use crate::pool::observe::{Exporter, names};

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
        let labels = vec![pool_label(cache.pool().name()), Label::new("cache", name.to_owned())];
        let cache = cache.clone();
        self.also(move || publish(&cache.stats(), &labels))
    }
}

fn publish(stats: &KvCacheStats, labels: &[Label]) {
    the_gauge(names::BLOCKS, labels).set(stats.blocks as f64);
    the_gauge(names::BYTES, labels).set(stats.bytes as f64);
    let counts = [
        (names::HITS, stats.hits),
        (names::MISSES, stats.misses),
        (names::INSERTIONS, stats.insertions),
        (names::REPLACEMENTS, stats.replacements),
        (names::EVICTIONS, stats.evictions),
        (names::REMOVALS, stats.removals),
        (names::INSERTION_FAILURES, stats.insertion_failures),
        (names::SINK_FAILURES, stats.sink_failures),
        (names::SUPERSEDED, stats.superseded),
    ];
    for (what, value) in counts {
        the_counter(what, labels).absolute(value);
    }
}
