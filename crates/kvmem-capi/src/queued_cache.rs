//! *Queued cache*: a cache, and the queue of its evicted values.

use std::ops::Deref;
use std::sync::Arc;

use kvmem::cache::KvCache;
use kvmem::tier::WriteBehind;

use crate::kv_value::Key;

/// A full queue: the thread that evicts a value waits until a writer has made room. The default.
pub const KVMEM_WHEN_FULL_WAIT: u32 = 0;

/// A full queue: the value is not written, and an older one of the lower tier is removed.
pub const KVMEM_WHEN_FULL_DROP: u32 = 1;

/// The end of the cache: the values in the queue are written first. The default.
pub const KVMEM_ON_DROP_WRITE: u32 = 0;

/// The end of the cache: the values in the queue are lost, and older ones of the lower tier are
/// removed first.
pub const KVMEM_ON_DROP_DISCARD: u32 = 1;

/// A cache, and the queue below it.
pub(crate) struct QueuedCache {
    cache: KvCache<Key>,
    pub(crate) queue: Option<Arc<WriteBehind>>,
}

impl QueuedCache {
    pub(crate) fn new(cache: KvCache<Key>, queue: Option<Arc<WriteBehind>>) -> QueuedCache {
        QueuedCache { cache, queue }
    }
}

impl Deref for QueuedCache {
    type Target = KvCache<Key>;

    fn deref(&self) -> &KvCache<Key> {
        &self.cache
    }
}
