//! Whole caches in one thread: which value is evicted, and the calls that other tests reach only
//! with a clock, a child or a lower tier of another crate.

mod calls;
mod evictions;
mod tiers;

use crate::arena::PageSize;
use crate::cache::{KvCache, KvCacheBuilder};
use crate::pool::Pool;

/// Returns a pool of base pages without magazines: a freed range is free at once.
pub(super) fn pool(bytes: usize) -> Pool {
    let builder = Pool::builder(bytes).ladder(PageSize::Base).auto_hot_sizes(false);
    builder.build().expect("base pages are available")
}

/// Returns a cache with one shard, in which the next victim is known.
pub(super) fn one_shard(
    pool: &Pool,
    settings: impl FnOnce(KvCacheBuilder<u64>) -> KvCacheBuilder<u64>,
) -> KvCache<u64> {
    settings(KvCache::<u64>::builder(pool).shards(1)).build().expect("sensible settings")
}

/// Returns those of `keys` that the cache holds. This does not count as use.
pub(super) fn held(cache: &KvCache<u64>, keys: std::ops::Range<u64>) -> Vec<u64> {
    keys.filter(|key| cache.contains_in_memory(key)).collect()
}

/// Random numbers below a limit.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }
}
