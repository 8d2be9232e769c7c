//! *Removal*: what a cache removes is removed in its lower tier, too.

use std::hash::Hash;

use crate::cache::{KvCache, LowerTierError, Pinned};

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
