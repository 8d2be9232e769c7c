//! *Contender*: tables of keyed values that threads can share.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use kvmem::pool::kv_cache::Eviction;
use kvmem::pool::{KvCache, Pool};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::{ContenderId, KEYS, MeasureError, VALUE_BYTES};

type Hasher = foldhash::fast::RandomState;

/// A table of [`KEYS`] values.
pub(super) trait LookUp: Sync {
    /// Looks a key up, and lets go of what is found; whether there was anything.
    fn get(&self, key: u64) -> bool;
}

/// A table that can be changed; it makes room by itself.
pub(super) trait Insert: LookUp + Sized {
    /// An empty one.
    fn create(id: ContenderId) -> Result<Self, MeasureError>;

    /// Puts [`VALUE_BYTES`] bytes in.
    fn insert(&self, key: u64) -> Result<(), MeasureError>;
}

impl LookUp for KvCache<u64> {
    #[inline]
    fn get(&self, key: u64) -> bool {
        KvCache::get(self, &key).is_some()
    }
}

impl Insert for KvCache<u64> {
    fn create(id: ContenderId) -> Result<Self, MeasureError> {
        let eviction =
            if id == ContenderId::KvmemScan { Eviction::ScanResistant } else { Eviction::Lru };
        // Room for what threads write or have just let go of besides.
        let (pool, _) = Pool::builder(2 * KEYS as usize * VALUE_BYTES).build()?;
        Ok(KvCache::builder(&pool).eviction(eviction).max_blocks(KEYS).build()?)
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<(), MeasureError> {
        Ok(self.insert_with(key, VALUE_BYTES, |bytes| bytes.fill(key as u8))?)
    }
}

/// The cache of others.
pub(super) type Quick = Cache<u64, Arc<[u8]>, UnitWeighter, Hasher>;

impl LookUp for Quick {
    #[inline]
    fn get(&self, key: u64) -> bool {
        Cache::get(self, &key).is_some()
    }
}

impl Insert for Quick {
    fn create(_: ContenderId) -> Result<Self, MeasureError> {
        let lifecycle = DefaultLifecycle::default();
        Ok(Cache::with(KEYS as usize, KEYS, UnitWeighter, Hasher::default(), lifecycle))
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<(), MeasureError> {
        Cache::insert(self, key, Arc::new([key as u8; VALUE_BYTES]));
        Ok(())
    }
}

/// A table that nobody changes any more, with one line for each value that is read when it is
/// found, as the head of a value is.
pub(super) struct Floor(HashMap<u64, Box<[u64; 8]>, Hasher>);

impl Floor {
    pub(super) fn filled() -> Self {
        Floor((0..KEYS).map(|key| (key, Box::new([key; 8]))).collect())
    }
}

impl LookUp for Floor {
    #[inline]
    fn get(&self, key: u64) -> bool {
        self.0.get(&key).is_some_and(|head| black_box(head[0]) == key)
    }
}
