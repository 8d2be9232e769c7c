//! *Contender*: caches that threads can share.

use std::sync::Arc;

use kvmem::pool::kv_cache::Eviction;
use kvmem::pool::{KvCache, Pool};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::{ContenderId, KEYS, MeasureError, VALUE_BYTES};

/// A cache of [`KEYS`] values at most.
pub(super) trait Shared: Sync + Sized {
    /// An empty one.
    fn create(id: ContenderId) -> Result<Self, MeasureError>;

    /// Looks a key up, and lets go of what is found; whether there was anything.
    fn get(&self, key: u64) -> bool;

    /// Puts [`VALUE_BYTES`] bytes in.
    fn insert(&self, key: u64) -> Result<(), MeasureError>;
}

impl Shared for KvCache<u64> {
    fn create(id: ContenderId) -> Result<Self, MeasureError> {
        let eviction = match id {
            ContenderId::KvmemScan => Eviction::ScanResistant,
            ContenderId::Kvmem | ContenderId::QuickCache => Eviction::Lru,
        };
        // Room for what threads write or have just let go of besides.
        let (pool, _) = Pool::builder(2 * KEYS as usize * VALUE_BYTES).build()?;
        Ok(KvCache::builder(&pool).eviction(eviction).blocks_at_most(KEYS).build()?)
    }

    #[inline]
    fn get(&self, key: u64) -> bool {
        KvCache::get(self, &key).is_some()
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<(), MeasureError> {
        Ok(self.insert_with(key, VALUE_BYTES, |bytes| bytes.fill(key as u8))?)
    }
}

/// The cache of others.
pub(super) type Quick = Cache<u64, Arc<[u8]>, UnitWeighter, foldhash::fast::RandomState>;

impl Shared for Quick {
    fn create(_: ContenderId) -> Result<Self, MeasureError> {
        let hasher = foldhash::fast::RandomState::default();
        Ok(Cache::with(KEYS as usize, KEYS, UnitWeighter, hasher, DefaultLifecycle::default()))
    }

    #[inline]
    fn get(&self, key: u64) -> bool {
        Cache::get(self, &key).is_some()
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<(), MeasureError> {
        Cache::insert(self, key, Arc::new([key as u8; VALUE_BYTES]));
        Ok(())
    }
}

/// Code that is compiled once for each contender and picked by name.
pub(super) trait Visitor {
    /// What it returns.
    type Output;
    /// Runs with the contender `C`.
    fn visit<C: Shared>(self) -> Self::Output;
}

/// Calls `visitor` with the type behind the name.
pub(super) fn visit<V: Visitor>(id: ContenderId, visitor: V) -> V::Output {
    match id {
        ContenderId::Kvmem | ContenderId::KvmemScan => visitor.visit::<KvCache<u64>>(),
        ContenderId::QuickCache => visitor.visit::<Quick>(),
    }
}
