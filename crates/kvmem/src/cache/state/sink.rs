//! *Eviction sink*: the callback that receives evicted values, and values in flight to it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::cache::index::{Pinned, Shard};
use crate::sys::Process;
use crate::tier::Tier;

/// The callback that receives each evicted value, if there is one. Returns whether it has stored
/// the value.
pub(in crate::cache) type EvictionSink<K> = Option<Arc<EvictionFn<K>>>;
pub(in crate::cache) type EvictionFn<K> = dyn Fn(Pinned<K>) -> bool + Send + Sync;

/// A tier below a cache, and how the cache's keys become bytes.
pub(in crate::cache) struct LowerTier<K> {
    pub(in crate::cache) tier: Arc<dyn Tier>,
    pub(in crate::cache) key_bytes: fn(&K) -> Cow<'_, [u8]>,
}

impl<K> Clone for LowerTier<K> {
    fn clone(&self) -> Self {
        LowerTier { tier: Arc::clone(&self.tier), key_bytes: self.key_bytes }
    }
}

/// The destination of evicted values, and the tier there.
pub(in crate::cache) struct Below<K> {
    pub(in crate::cache) sink: EvictionSink<K>,
    /// The tier that the sink fills, if it is one.
    pub(in crate::cache) lower_tier: Option<LowerTier<K>>,
    /// The most threads that read from it in the background.
    pub(in crate::cache) fetch_threads: usize,
}

/// A value in flight to the callback. While this lives, its key is not leased. A callback that
/// panics has not stored the value.
pub(in crate::cache) struct HandOverGuard<'a, K> {
    process: Process,
    shard: &'a Shard<K>,
    number: u64,
    pub(in crate::cache) taken: bool,
}

impl<'a, K> HandOverGuard<'a, K> {
    pub(in crate::cache) fn new(process: Process, shard: &'a Shard<K>, number: u64) -> Self {
        HandOverGuard { process, shard, number, taken: false }
    }
}

impl<K> Drop for HandOverGuard<'_, K> {
    fn drop(&mut self) {
        // A sink may fork.
        if self.process.is_forked() {
            return;
        }
        self.shard.change_leases(|leases| {
            leases.handed_over(self.number, self.taken);
            if !self.taken {
                self.shard.counts.sink_failures.more();
            }
        });
    }
}
