//! *Invalidation*: guards that block leases while a lower tier invalidates keys.

use crate::cache::index::{Shard, UntrustedKeys};
use crate::sys::Process;

/// Keeps a key from being leased. If it is dropped before [`confirmed`](Self::confirmed), the lower
/// tier counts as not informed.
pub(super) struct InvalidationGuard<'a, K> {
    process: Process,
    shard: &'a Shard<K>,
    hash: u64,
    confirmed: bool,
}

impl<'a, K> InvalidationGuard<'a, K> {
    /// Makes a guard of a key whose leases are blocked.
    pub(super) fn new(process: Process, shard: &'a Shard<K>, hash: u64) -> Self {
        InvalidationGuard { process, shard, hash, confirmed: false }
    }

    /// Records that the lower tier has made the invalidation.
    pub(super) fn confirmed(mut self) {
        self.confirmed = true;
    }
}

impl<K> Drop for InvalidationGuard<'_, K> {
    fn drop(&mut self) {
        // The callback may have forked.
        if !self.process.is_forked() {
            self.shard.change_leases(|leases| leases.unblock(self.hash, self.confirmed));
        }
    }
}

/// Keeps all keys of a cache from being leased.
pub(super) struct CacheInvalidationGuard<'a, K>(Vec<ShardInvalidationGuard<'a, K>>);

/// Keeps all keys of a shard from being leased.
struct ShardInvalidationGuard<'a, K> {
    process: Process,
    shard: &'a Shard<K>,
    before: Option<UntrustedKeys>,
    confirmed: bool,
}

impl<'a, K> CacheInvalidationGuard<'a, K> {
    /// Makes a guard without shards.
    pub(super) fn new() -> Self {
        CacheInvalidationGuard(Vec::new())
    }

    /// Adds a shard whose leases are all blocked.
    pub(super) fn also(&mut self, process: Process, shard: &'a Shard<K>, before: UntrustedKeys) {
        self.0.push(ShardInvalidationGuard {
            process,
            shard,
            before: Some(before),
            confirmed: false,
        });
    }

    /// Records that the lower tier has made the invalidation.
    pub(super) fn confirmed(mut self) {
        self.0.iter_mut().for_each(|shard| shard.confirmed = true);
    }
}

impl<K> Drop for ShardInvalidationGuard<'_, K> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take().filter(|_| !self.process.is_forked()) {
            self.shard.change_leases(|leases| leases.unblock_all(self.confirmed, before));
        }
    }
}
