//! *Lower tier*: a disk tier below a [`KvCache`](kvmem::cache::KvCache).

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::cache::{LowerTier, LowerTierError, Pinned, TierRead};

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

impl TierKey for Box<[u8]> {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl TierKey for String {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }
}

fn lock(order: &Mutex<()>) -> MutexGuard<'_, ()> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cache's evicted values go to the disk in the thread that evicts them, or in that of a
/// [`WriteBehind`](kvmem::cache::WriteBehind), which writes many at once. Values that
/// begin at a multiple of 4096 bytes in memory are written from there, and fetched into place: let
/// the cache [allocate](kvmem::cache::KvCacheBuilder::with_allocator) them so.
///
/// ```
/// use std::sync::Arc;
///
/// use kvmem::arena::PageSize;
/// use kvmem::cache::KvCache;
/// use kvmem::pool::Pool;
/// use kvmem_tier::{DiskTier, DiskTierOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tier");
/// let options = DiskTierOptions { bytes: Some(16 << 20), ..DiskTierOptions::default() };
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<K: TierKey, D: Device> LowerTier<K> for DiskTier<D> {
    fn put(&self, value: &Pinned<K>) -> Result<(), LowerTierError> {
        self.put_all(std::slice::from_ref(value)).remove(0)
    }

    /// Stores the values together, as [`store`](DiskTier::store) does, except those that the tier
    /// still has as the cache fetched them.
    fn put_all(&self, values: &[Pinned<K>]) -> Vec<Result<(), LowerTierError>> {
        let keys: Vec<Cow<'_, [u8]>> = values.iter().map(|value| value.key().key_bytes()).collect();
        let _orders = self.lock_orders(&keys);
        let mut results: Vec<Result<(), LowerTierError>> = values.iter().map(|_| Ok(())).collect();
        let (mut stored, mut rejected, mut unchanged) = (Vec::new(), Vec::new(), Vec::new());
        for (index, value) in values.iter().enumerate().filter(|(_, it)| !it.is_superseded()) {
            if self.has(&keys[index], value.origin()) {
                unchanged.push(index);
                continue;
            }
            let admits = self.admits(&keys[index], value.bytes());
            if admits { stored.push(index) } else { rejected.push(index) }
        }
        let batch: Vec<(&[u8], &[u8])> =
            stored.iter().map(|&index| (&*keys[index], values[index].bytes())).collect();
        let outcomes = if batch.is_empty() { Vec::new() } else { self.store_admitted(&batch) };
        let failed = stored.into_iter().zip(outcomes).filter(|(_, outcome)| outcome.is_err());
        rejected.extend(failed.map(|(index, _)| index));
        // Another thread may have stored them just now, and may still be writing the journal.
        if !unchanged.is_empty() && self.commit_all().is_err() {
            rejected.append(&mut unchanged);
        }
        // An older value must not come back for one that is lost now.
        let lost: Vec<&[u8]> = rejected.iter().map(|&index| &*keys[index]).collect();
        if !lost.is_empty()
            && let Err(error) = self.remove(&lost)
        {
            let error = error.to_string();
            rejected.into_iter().for_each(|index| results[index] = Err(error.clone().into()));
        }
        results
    }

    fn lengths(&self, keys: &[&K]) -> Vec<Option<usize>> {
        let len = |key: &&K| self.len_of(&key.key_bytes()).map(|len| len as usize);
        keys.iter().map(len).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_, K>]) -> Vec<bool> {
        let keys: Vec<Cow<'_, [u8]>> = reads.iter().map(|read| read.key.key_bytes()).collect();
        let mut requests: Vec<Fetch<'_>> = keys
            .iter()
            .zip(reads.iter_mut())
            .map(|(key, read)| Fetch { key, into: &mut *read.into })
            .collect();
        let mut origins = vec![None; requests.len()];
        let fetched = self.fetch_numbered(&mut requests, &mut |index, number| {
            origins[index] = self.origin(number);
        });
        drop(requests);
        reads.iter_mut().zip(origins).for_each(|(read, origin)| read.origin = origin);
        fetched.into_iter().map(|fetched| fetched == Fetched::Hit).collect()
    }

    fn invalidate(&self, key: &K) -> Result<(), LowerTierError> {
        let key = key.key_bytes();
        let _order = lock(self.order(&key));
        Ok(self.remove(&[&key]).map(drop)?)
    }

    fn clear(&self) -> Result<(), LowerTierError> {
        let _orders: Vec<_> = self.orders.iter().map(lock).collect();
        Ok(DiskTier::clear(self)?)
    }

    fn sync(&self) -> Result<(), LowerTierError> {
        Ok(self.sync_all()?)
    }
}

impl<D: Device> DiskTier<D> {
    /// Locks the order of each key. Threads that lock several lock them in the order of their
    /// addresses, as a clear does.
    fn lock_orders(&self, keys: &[Cow<'_, [u8]>]) -> Vec<MutexGuard<'_, ()>> {
        let mut orders: Vec<&Mutex<()>> = keys.iter().map(|key| self.order(key)).collect();
        orders.sort_unstable_by_key(|&order| std::ptr::from_ref(order));
        orders.dedup_by(|a, b| std::ptr::eq(*a, *b));
        orders.into_iter().map(lock).collect()
    }
}
