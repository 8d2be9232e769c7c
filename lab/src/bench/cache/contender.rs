//! Tables of keyed values that threads can share.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, Result};
use kvmem::cache::Eviction;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem_tier::{DiskTier, DiskTierOptions};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tempfile::TempDir;

use super::{CacheContenderId, KEYS, VALUE_BYTES};

/// Bytes of the file of a tier.
const TIER_BYTES: u64 = 16 << 20;

type Hasher = foldhash::fast::RandomState;

/// A table of [`KEYS`] values.
pub(super) trait LookUp: Sync {
    /// Looks a key up and releases the value; returns whether it was found.
    fn get(&self, key: u64) -> bool;
}

/// A table that can be changed and evicts values itself.
pub(super) trait Insert: LookUp + Sized {
    /// Creates an empty table.
    fn create(id: CacheContenderId) -> Result<Self>;

    /// Inserts a value of [`VALUE_BYTES`] bytes.
    fn insert(&self, key: u64) -> Result<()>;
}

impl LookUp for KvCache<u64> {
    #[inline]
    fn get(&self, key: u64) -> bool {
        KvCache::get(self, &key).is_some()
    }
}

impl Insert for KvCache<u64> {
    fn create(id: CacheContenderId) -> Result<Self> {
        let eviction =
            if id == CacheContenderId::KvmemScan { Eviction::ScanResistant } else { Eviction::Lru };
        // Twice the size: threads also write values and keep released ones for a moment.
        let pool = Pool::builder(2 * KEYS as usize * VALUE_BYTES).build()?;
        Ok(KvCache::builder(&pool).eviction(eviction).max_blocks(KEYS).build()?)
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<()> {
        Ok(self.insert_filled(key, VALUE_BYTES, |bytes| bytes.fill(key as u8))?)
    }
}

/// A cache above a disk tier. Look-ups do not reach the tier.
pub(super) struct TieredCache {
    cache: KvCache<u64>,
    /// The folder of the tier's file.
    _folder: TempDir,
}

impl LookUp for TieredCache {
    #[inline]
    fn get(&self, key: u64) -> bool {
        LookUp::get(&self.cache, key)
    }
}

impl Insert for TieredCache {
    fn create(_: CacheContenderId) -> Result<Self> {
        let folder = TempDir::with_prefix("kvmem-bench-")?;
        let options = DiskTierOptions { bytes: Some(TIER_BYTES), ..DiskTierOptions::default() };
        let (tier, _) = DiskTier::open(folder.path().join("tier"), &options)
            .context("a disk tier in the folder for temporary files")?;
        let pool = Pool::builder(2 * KEYS as usize * VALUE_BYTES).build()?;
        let cache = KvCache::builder(&pool).lower_tier(Arc::new(tier)).max_blocks(KEYS).build()?;
        Ok(TieredCache { cache, _folder: folder })
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<()> {
        Insert::insert(&self.cache, key)
    }
}

/// The `quick_cache` crate's concurrent cache.
pub(super) type QuickTable = Cache<u64, Arc<[u8]>, UnitWeighter, Hasher>;

impl LookUp for QuickTable {
    #[inline]
    fn get(&self, key: u64) -> bool {
        Cache::get(self, &key).is_some()
    }
}

impl Insert for QuickTable {
    fn create(_: CacheContenderId) -> Result<Self> {
        let lifecycle = DefaultLifecycle::default();
        Ok(Cache::with(KEYS as usize, KEYS, UnitWeighter, Hasher::default(), lifecycle))
    }

    #[inline]
    fn insert(&self, key: u64) -> Result<()> {
        Cache::insert(self, key, Arc::new([key as u8; VALUE_BYTES]));
        Ok(())
    }
}

/// An immutable table. A hit reads one line of the value, as the head of a value is read in the
/// other tables.
pub(super) struct FloorTable(HashMap<u64, Box<[u64; 8]>, Hasher>);

impl FloorTable {
    pub(super) fn filled() -> Self {
        FloorTable((0..KEYS).map(|key| (key, Box::new([key; 8]))).collect())
    }
}

impl LookUp for FloorTable {
    #[inline]
    fn get(&self, key: u64) -> bool {
        self.0.get(&key).is_some_and(|head| black_box(head[0]) == key)
    }
}
