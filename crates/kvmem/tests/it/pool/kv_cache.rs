//! Keyed blocks: against a model, under threads, with pins, limits and every order of drops.

mod evicted;
mod fork;
mod leases;
mod limits;
mod lower_tier;
mod model;
mod panics;
mod pins;
mod policies;
mod source;
mod threads;

use kvmem::arena::PageSize;
use kvmem::pool::kv_cache::KvCacheBuilder;
use kvmem::pool::{KvCache, Pool};

/// A pool of base pages that caches nothing for itself, so that what is freed is free.
fn pool(bytes: usize) -> Pool {
    Pool::builder(bytes)
        .ladder(PageSize::Base)
        .auto_hot_sizes(false)
        .build()
        .expect("base pages are to be had")
        .0
}

/// A cache with one shard: which block goes next is then known.
fn one_shard(
    pool: &Pool,
    wish: impl FnOnce(KvCacheBuilder<u64>) -> KvCacheBuilder<u64>,
) -> KvCache<u64> {
    wish(KvCache::<u64>::builder(pool).shards(1)).build().expect("sensible settings")
}

/// The keys of `keys` that are held, which does not count as use.
fn held(cache: &KvCache<u64>, keys: std::ops::Range<u64>) -> Vec<u64> {
    keys.filter(|key| cache.contains(key)).collect()
}
