//! *Fetch*: what a cache lacks comes from its lower tier, and what it removes is removed there.

use std::hash::Hash;

use super::tier::{Lease, Leased};
use super::{KvCache, LowerTierError, Pinned, Reservation, TierRead};

impl<K: Hash + Eq + Clone> KvCache<K> {
    /// Returns the values of several keys, pinned: those in memory, and those that the lower tier
    /// has, which are fetched together and committed. `None` where neither has a value, where the
    /// tier's value is damaged, and where no space could be made for it.
    ///
    /// The call blocks while the tier reads. A value that was inserted or removed meanwhile is
    /// never replaced by an older one of the tier. O(keys), besides what is read and evicted.
    ///
    /// ```
    /// # use kvmem::arena::PageSize;
    /// # use kvmem::pool::{KvCache, Pool};
    /// # let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
    /// let cache: KvCache<u64> = KvCache::new(&pool);
    /// cache.insert(7, b"seven")?;
    /// // Without a lower tier these are the values in memory.
    /// let found = cache.get_or_fetch(&[7, 8]);
    /// assert!(found[0].is_some() && found[1].is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get_or_fetch(&self, keys: &[K]) -> Vec<Option<Pinned<K>>> {
        let mut found: Vec<_> = keys.iter().map(|key| self.get(key)).collect();
        let Some(tier) = &self.inner.lower_tier else { return found };
        // First the leases, then the tier: what happens in between breaks them.
        let mut leases: Vec<(usize, Lease<K>)> = Vec::new();
        for (index, found) in found.iter_mut().enumerate().filter(|(_, found)| found.is_none()) {
            match self.lease(&keys[index]) {
                Leased::Lease(lease) => leases.push((index, lease)),
                Leased::Present(pinned) => *found = Some(pinned),
                Leased::Unavailable => {}
            }
        }
        if leases.is_empty() {
            return found;
        }
        let wanted: Vec<&K> = leases.iter().map(|(index, _)| &keys[*index]).collect();
        let lengths = tier.lengths(&wanted);
        let mut fetches: Vec<(usize, Lease<K>, Reservation<K>)> = Vec::new();
        for ((index, lease), len) in leases.into_iter().zip(lengths) {
            let room = len.and_then(|len| self.reserve(keys[index].clone(), len).ok());
            fetches.extend(room.map(|room| (index, lease, room)));
        }
        let mut reads: Vec<TierRead<'_, K>> = fetches
            .iter_mut()
            .map(|(index, _, room)| TierRead { key: &keys[*index], into: room.bytes_mut() })
            .collect();
        let whole = tier.fetch(&mut reads);
        for ((index, lease, room), whole) in fetches.into_iter().zip(whole) {
            if whole {
                found[index] = match room.commit_leased(lease) {
                    Ok(pinned) => Some(pinned),
                    Err(superseded) => superseded.found,
                };
            }
        }
        found
    }
}

impl<K: Hash + Eq> KvCache<K> {
    /// Removes the value under `key` from the cache and from its lower tier. Without a tier it is
    /// [`remove`](Self::remove).
    ///
    /// # Errors
    /// Those of [`remove_with`](Self::remove_with).
    pub fn remove_everywhere(&self, key: &K) -> Result<Option<Pinned<K>>, LowerTierError> {
        match &self.inner.lower_tier {
            Some(tier) => self.remove_with(key, || tier.invalidate(key)),
            None => Ok(self.remove(key)),
        }
    }

    /// Removes every value from the cache and from its lower tier. Without a tier it is
    /// [`clear`](Self::clear).
    ///
    /// # Errors
    /// Those of [`clear_with`](Self::clear_with).
    pub fn clear_everywhere(&self) -> Result<(), LowerTierError> {
        match &self.inner.lower_tier {
            Some(tier) => self.clear_with(|| tier.clear()),
            None => {
                self.clear();
                Ok(())
            }
        }
    }
}
