//! *Lower tier*: disk tiers as the [`Tier`] of a cache or a node.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvmem::tier::{
    BoxError, Lookup, Priority, StoreOutcome, Tier, TierHints, TierHit, TierRead, TierState,
    TierValue,
};

use crate::device::Device;
use crate::format::Hints;
use crate::index::seconds_now;
use crate::tier::{DiskTier, StoreError};
use crate::tier_set::TierSet;

fn lock(order: &Mutex<()>) -> MutexGuard<'_, ()> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lookup(len: Option<u64>) -> Lookup {
    len.map_or(Lookup::Missing, Lookup::Found)
}

impl<D: Device> DiskTier<D> {
    fn store_errors(&self) -> MutexGuard<'_, Option<(u64, StoreError)>> {
        self.store_errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many values the tier has failed to store for the cache or node above it since
    /// the last call, and the reason for the last of them; `None`: it has not failed.
    #[must_use]
    pub fn take_store_errors(&self) -> Option<(u64, StoreError)> {
        self.store_errors().take()
    }
}

/// By this many seconds a value may expire later than its time to live says: both the clock and the
/// time are rounded up.
const ROUNDED_UP: u32 = 2;

/// Returns the hints of a value that is stored. The rest of its time to live is rounded down: no
/// number of journeys between memory and the disk makes it longer.
fn hints_of(Hints { expires, priority }: Hints) -> TierHints {
    let left = expires.saturating_sub(seconds_now().saturating_add(ROUNDED_UP));
    let ttl = (expires != 0).then(|| Duration::from_secs(left.into()));
    TierHints { priority: Priority::nearest(priority), ttl, ..TierHints::default() }
}

/// A cache's evicted values go to the disk in the thread that evicts them, or in that of a
/// [`WriteBehind`](kvmem::tier::WriteBehind), which writes many at once. Values that
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
/// assert!(cache.get_in_memory(&0).is_none());
/// assert!(cache.get(&0).is_some());
/// let found = cache.get_batch(&[0, 1, 2]);
/// assert!(found.iter().all(Option::is_some));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<D: Device> Tier for DiskTier<D> {
    /// Stores the values together, as [`store_with`](DiskTier::store_with) does, if they are
    /// [admitted](crate::DiskTierOptions::admission), except those that the tier still has as they
    /// were fetched.
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let _orders = self.lock_orders(values.iter().map(|value| value.key));
        let mut results: Vec<Result<StoreOutcome, BoxError>> =
            values.iter().map(|_| Ok(StoreOutcome::NotStored)).collect();
        let (mut admitted, mut rejected, mut unchanged) = (Vec::new(), Vec::new(), Vec::new());
        for (index, value) in values.iter().enumerate().filter(|(_, it)| !it.is_superseded()) {
            if self.has(value.key, value.origin) {
                unchanged.push(index);
                continue;
            }
            let admits = self.admits(value.key, value.bytes);
            if admits { admitted.push(index) } else { rejected.push(index) }
        }
        let batch: Vec<TierValue<'_>> = admitted.iter().map(|&index| values[index]).collect();
        let outcomes = if batch.is_empty() { Vec::new() } else { self.store_admitted(&batch) };
        for (index, outcome) in admitted.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => results[index] = Ok(StoreOutcome::Stored),
                Err(error) => {
                    rejected.push(index);
                    let mut errors = self.store_errors();
                    *errors = Some((errors.as_ref().map_or(1, |(values, _)| values + 1), error));
                }
            }
        }
        // Another thread may have stored them just now, and may still be writing the journal.
        if !unchanged.is_empty() && self.commit_all().is_err() {
            rejected.append(&mut unchanged);
        }
        unchanged.into_iter().for_each(|index| results[index] = Ok(StoreOutcome::Stored));
        // An older value must not come back for one that is lost now. While the journal fails, most
        // keys have none.
        let lost: Vec<&[u8]> = rejected.iter().map(|&index| values[index].key).collect();
        if !lost.is_empty()
            && let Err(error) = DiskTier::remove(self, &lost)
        {
            let error = error.to_string();
            let in_doubt = rejected.into_iter().filter(|&index| self.may_have(values[index].key));
            in_doubt.for_each(|index| results[index] = Err(error.clone().into()));
        }
        results
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| Tier::len_of(self, key)).collect()
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        lookup(DiskTier::len_of(self, key))
    }

    fn may_have(&self, key: &[u8]) -> bool {
        DiskTier::may_have(self, key)
    }

    fn touch(&self, keys: &[&[u8]]) {
        for key in keys {
            DiskTier::touch(self, key);
        }
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let mut hits = vec![None; reads.len()];
        self.fetch_entries(reads, &mut |index, entry, decoded| {
            let checksum = Some(decoded.unwrap_or_else(|| self.checksum_of(entry)));
            let (origin, hints) = (self.origin(entry.number), hints_of(entry.hints));
            hits[index] = Some(TierHit { checksum, origin, hints });
        });
        hits
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let _orders = self.lock_orders(keys.iter().copied());
        Ok(DiskTier::remove(self, keys).map(drop)?)
    }

    fn clear(&self) -> Result<(), BoxError> {
        let _orders: Vec<_> = self.orders.iter().map(lock).collect();
        Ok(DiskTier::clear(self)?)
    }

    fn forget_namespace(&self, namespace: &[u8]) -> Result<(), BoxError> {
        Ok(DiskTier::forget_namespace(self, namespace).map(drop)?)
    }

    fn forgets_namespaces(&self) -> bool {
        self.encrypts()
    }

    fn sync(&self) -> Result<(), BoxError> {
        Ok(self.sync_all()?)
    }

    fn values(&self) -> u64 {
        self.stats().entries
    }

    fn evictions(&self) -> u64 {
        self.let_go()
    }

    fn state(&self) -> TierState {
        if self.is_read_only() { TierState::ReadOnly } else { TierState::Working }
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        DiskTier::keep_open(self, file)
    }
}

impl<D: Device> DiskTier<D> {
    /// Locks the order of each key. Threads that lock several lock them in the order of their
    /// addresses, as a clear does.
    fn lock_orders<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Vec<MutexGuard<'_, ()>> {
        let mut orders: Vec<&Mutex<()>> = keys.map(|key| self.order(key)).collect();
        orders.sort_unstable_by_key(|&order| std::ptr::from_ref(order));
        orders.dedup_by(|a, b| std::ptr::eq(*a, *b));
        orders.into_iter().map(lock).collect()
    }
}

/// Values go to the tiers to which their keys belong.
impl<D: Device> Tier for TierSet<D> {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let placed = values.iter().map(|&value| (self.place_of(value.key), value));
        self.each(placed, |tier, values| Tier::store(tier, &values))
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| Tier::len_of(self, key)).collect()
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        lookup(TierSet::len_of(self, key))
    }

    fn may_have(&self, key: &[u8]) -> bool {
        TierSet::may_have(self, key)
    }

    fn touch(&self, keys: &[&[u8]]) {
        for key in keys {
            TierSet::touch(self, key);
        }
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let placed = reads
            .iter_mut()
            .map(|TierRead { key, into }| (self.place_of(key), TierRead { key, into }));
        self.each(placed, |tier, mut reads| Tier::fetch(tier, &mut reads))
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let placed = keys.iter().map(|&key| (self.place_of(key), key));
        let removed = self.each(placed, |tier, keys| {
            // The result of a call is that of each of its keys.
            let removed = Tier::remove(tier, &keys).map_err(|error| error.to_string());
            keys.iter().map(|_| removed.clone()).collect()
        });
        Ok(removed.into_iter().collect::<Result<(), String>>()?)
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.all(<DiskTier<D> as Tier>::clear).map(drop)
    }

    fn forget_namespace(&self, namespace: &[u8]) -> Result<(), BoxError> {
        Ok(TierSet::forget_namespace(self, namespace).map(drop)?)
    }

    fn forgets_namespaces(&self) -> bool {
        self.tiers().iter().all(DiskTier::encrypts)
    }

    fn sync(&self) -> Result<(), BoxError> {
        Ok(self.sync_all()?)
    }

    fn values(&self) -> u64 {
        self.stats().entries
    }

    fn evictions(&self) -> u64 {
        self.tiers().iter().map(DiskTier::let_go).sum()
    }

    /// A set stores the keys of those tiers that work.
    fn state(&self) -> TierState {
        let works = |tier: &DiskTier<D>| !tier.is_read_only();
        if self.tiers().iter().any(works) { TierState::Working } else { TierState::ReadOnly }
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        TierSet::keep_open(self, file)
    }
}
