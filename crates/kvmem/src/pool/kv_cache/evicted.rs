//! *Evicted*: who gets what leaves the cache for room.

use std::sync::Arc;

use super::Pinned;

/// Is given each evicted value, or nobody is.
pub(super) type Taker<K> = Option<Arc<dyn Fn(Pinned<K>) + Send + Sync>>;
