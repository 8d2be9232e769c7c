//! *Lower tier*: a disk tier below a [`KvCache`](kvmem::pool::KvCache).

use std::borrow::Cow;
use std::sync::PoisonError;

use kvmem::pool::kv_cache::{LowerTier, LowerTierError, Pinned, TierRead};

use crate::device::Device;
use crate::tier::{DiskTier, Fetch, Fetched};

/// A key of a cache that a disk tier can store values under: bytes that tell it from all others, in
/// every process.
pub trait TierKey {
    /// Returns the bytes of the key.
    fn key_bytes(&self) -> Cow<'_, [u8]>;
}

impl TierKey for u64 {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.to_le_bytes().to_vec())
    }
}

impl TierKey for u128 {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.to_le_bytes().to_vec())
    }
}

impl<const N: usize> TierKey for [u8; N] {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl TierKey for Vec<u8> {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl TierKey for String {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }
}

/// A cache's evicted values go to the disk in the thread that evicts them. Values that begin at a
/// multiple of 4096 bytes in memory are written from there, and fetched into place: let the cache
/// [allocate](kvmem::pool::kv_cache::KvCacheBuilder::with_allocator) them so.
///
/// ```
/// use std::sync::Arc;
///
/// use kvmem::arena::PageSize;
/// use kvmem::pool::{KvCache, Pool};
/// use kvmem_tier::{DiskTier, TierOptions};
///
/// # let path = std::env::temp_dir().join(format!("kvmem-tier-doc-{}", std::process::id()));
/// let options = TierOptions { bytes: Some(16 << 20), ..TierOptions::default() };
/// let (tier, _) = DiskTier::open(&path, &options)?;
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
/// let cache: KvCache<u64> = KvCache::builder(&pool)
///     .lower_tier(Arc::new(tier))
///     .with_allocator(|pool, len| pool.allocate_aligned(len, 4096))
///     .build()?;
/// // More than fits into memory.
/// for key in 0..100 {
///     cache.insert(key, &[key as u8; 32_000])?;
/// }
/// assert!(cache.get(&0).is_none());
/// let found = cache.get_or_fetch(&[0, 1, 2]);
/// assert!(found.iter().all(Option::is_some));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<K: TierKey, D: Device> LowerTier<K> for DiskTier<D> {
    fn put(&self, value: &Pinned<K>) -> Result<(), LowerTierError> {
        let key = value.key().key_bytes();
        let _order = self.order(&key).lock().unwrap_or_else(PoisonError::into_inner);
        if value.is_superseded() {
            return Ok(());
        }
        let stored = self.admits(&key, value.bytes())
            && self.store(&[(&key, value.bytes())]).remove(0).is_ok();
        if !stored {
            // An older value must not come back for the one that is lost now.
            self.remove(&[&key])?;
        }
        Ok(())
    }

    fn lengths(&self, keys: &[&K]) -> Vec<Option<usize>> {
        let len = |key: &&K| self.len_of(&key.key_bytes()).map(|len| len as usize);
        keys.iter().map(len).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_, K>]) -> Vec<bool> {
        let keys: Vec<Cow<'_, [u8]>> = reads.iter().map(|read| read.key.key_bytes()).collect();
        let reads = keys.iter().zip(reads);
        let mut requests: Vec<Fetch<'_>> =
            reads.map(|(key, read)| Fetch { key, into: &mut *read.into }).collect();
        let fetched = DiskTier::fetch(self, &mut requests);
        fetched.into_iter().map(|fetched| fetched == Fetched::Hit).collect()
    }

    fn invalidate(&self, key: &K) -> Result<(), LowerTierError> {
        let key = key.key_bytes();
        let _order = self.order(&key).lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.remove(&[&key]).map(drop)?)
    }

    fn clear(&self) -> Result<(), LowerTierError> {
        let orders = self.orders.iter();
        let _orders: Vec<_> =
            orders.map(|order| order.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        Ok(DiskTier::clear(self)?)
    }
}
