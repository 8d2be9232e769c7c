//! *Removal*: values leave memory and the lower tier.

use std::borrow::Borrow;
use std::hash::Hash;

use crate::cache::{KvCache, LowerTierError, Pinned};

impl<K: Hash + Eq> KvCache<K> {
    /// Removes the value under `key` from memory and from the lower tier. Returns the value that
    /// memory had. Its bytes are free when the last pin on it is dropped. Without a tier it is
    /// [`remove_in_memory`](Self::remove_in_memory).
    ///
    /// # Errors
    /// [`LowerTierError`], only with a tier. The value is then out of memory, and the key is not
    /// fetched until the cache is [cleared](Self::clear): a value that the tier may still have does
    /// not come back. A panic of the tier has the same effect.
    pub fn remove<Q>(&self, key: &Q) -> Result<Option<Pinned<K>>, LowerTierError>
    where
        K: Borrow<Q> + From<Q::Owned>,
        Q: Hash + Eq + ToOwned + ?Sized,
    {
        let Some(below) = &self.inner.lower_tier else { return Ok(self.remove_in_memory(key)) };
        let owned = K::from(key.to_owned());
        let removed = self.remove_with(key, || below.tier.remove(&[&(below.key_bytes)(&owned)]));
        // Before the result is returned: a panic of its `Drop` would leak a result on its way.
        drop(owned);
        removed.map_err(LowerTierError::Remove)
    }

    /// Removes every value from memory and from the lower tier. Afterwards all keys are fetched
    /// again, also those whose removal or store had failed. Pins stay valid. Without a tier it is
    /// [`clear_in_memory`](Self::clear_in_memory).
    ///
    /// # Errors
    /// [`LowerTierError`], only with a tier. The values are then out of memory, and no key is
    /// fetched until a later call succeeds.
    pub fn clear(&self) -> Result<(), LowerTierError> {
        match &self.inner.lower_tier {
            Some(below) => self.clear_with(|| below.tier.clear()).map_err(LowerTierError::Clear),
            None => {
                self.clear_in_memory();
                Ok(())
            }
        }
    }
}
