//! Keyed blocks: against a model, under threads, with pins and limits, and in every order of drops.

mod below;
mod evicted;
mod fetch;
mod fork;
mod hints;
mod limits;
mod model;
mod origin;
mod panics;
mod pins;
mod policies;
mod prefix;
mod source;
mod threads;
mod verbs;
mod write_behind;

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::cache::KvCacheBuilder;
use kvmem::pool::Pool;

/// Returns a pool of base pages without magazines: a freed range is free at once.
fn pool(bytes: usize) -> Pool {
    Pool::builder(bytes)
        .ladder(PageSize::Base)
        .auto_hot_sizes(false)
        .build()
        .expect("base pages are available")
}

/// Returns a cache with one shard, in which the next victim is known.
fn one_shard(
    pool: &Pool,
    settings: impl FnOnce(KvCacheBuilder<u64>) -> KvCacheBuilder<u64>,
) -> KvCache<u64> {
    settings(KvCache::<u64>::builder(pool).shards(1)).build().expect("sensible settings")
}

/// Returns those of `keys` that the cache holds. This does not count as use.
fn held(cache: &KvCache<u64>, keys: std::ops::Range<u64>) -> Vec<u64> {
    keys.filter(|key| cache.contains(key)).collect()
}
