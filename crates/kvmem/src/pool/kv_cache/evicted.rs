//! *Evicted*: who gets what leaves the cache for room.

use std::sync::Arc;

use super::Pinned;
use super::room::Inner;
use super::shard::Shard;

/// Is given each evicted value, or nobody is. Answers whether it has taken it.
pub(super) type EvictionSink<K> = Option<Arc<dyn Fn(Pinned<K>) -> bool + Send + Sync>>;

/// What a [taker](super::KvCacheBuilder::on_evict) may answer: nothing, or whether it failed.
pub trait EvictionOutcome {
    /// Whether from now on the value, or nothing, is what the lower tier has under the key.
    fn is_taken(&self) -> bool;
}

impl EvictionOutcome for () {
    fn is_taken(&self) -> bool {
        true
    }
}

impl<E> EvictionOutcome for Result<(), E> {
    fn is_taken(&self) -> bool {
        self.is_ok()
    }
}

/// A value is on its way to the taker; as long as this lives, its key is not leased. A taker that
/// panics has not taken it.
pub(super) struct Handing<'a, K> {
    cache: &'a Inner<K>,
    shard: &'a Shard<K>,
    number: u64,
    pub(super) taken: bool,
}

impl<'a, K> Handing<'a, K> {
    pub(super) fn new(cache: &'a Inner<K>, shard: &'a Shard<K>, number: u64) -> Self {
        Handing { cache, shard, number, taken: false }
    }
}

impl<K> Drop for Handing<'_, K> {
    fn drop(&mut self) {
        // A taker may fork.
        if self.cache.process.is_gone() {
            return;
        }
        self.shard.change_leases(|leases| {
            leases.handed_over(self.number, self.taken);
            if !self.taken {
                self.shard.others.sink_failures.more();
            }
        });
    }
}
