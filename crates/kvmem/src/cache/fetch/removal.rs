//! *Removal*: what a cache removes is removed in its lower tier, too.

use std::hash::Hash;

use crate::cache::{KvCache, Pinned};
use crate::tier::BoxError;

impl<K: Hash + Eq> KvCache<K> {
    /// Removes the value under `key` from the cache and from its lower tier. Without a tier it is
    /// [`remove`](Self::remove).
    ///
    /// # Errors
    /// Those of [`remove_with`](Self::remove_with).
    pub fn remove_everywhere(&self, key: &K) -> Result<Option<Pinned<K>>, BoxError> {
        match &self.inner.lower_tier {
            Some(below) => self.remove_with(key, || below.tier.remove(&[&(below.key_bytes)(key)])),
            None => Ok(self.remove(key)),
        }
    }

    /// Removes every value from the cache and from its lower tier. Without a tier it is
    /// [`clear`](Self::clear).
    ///
    /// # Errors
    /// Those of [`clear_with`](Self::clear_with).
    pub fn clear_everywhere(&self) -> Result<(), BoxError> {
        match &self.inner.lower_tier {
            Some(below) => self.clear_with(|| below.tier.clear()),
            None => {
                self.clear();
                Ok(())
            }
        }
    }
}
