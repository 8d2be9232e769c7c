//! [`LowerTier`]: what a cache demands of a tier below it.

use std::error::Error;

use crate::cache::TierOrigin;
use crate::cache::index::Pinned;

/// The error of a lower tier.
pub type LowerTierError = Box<dyn Error + Send + Sync>;

/// A read of a value out of a lower tier.
#[derive(Debug)]
pub struct TierRead<'a, K> {
    /// The key.
    pub key: &'a K,
    /// Where the value goes: as many bytes as the tier said that it has.
    pub into: &'a mut [u8],
    /// What the tier names the value that it has read, if it does: the cache keeps that with the
    /// value, and [gives it back](Pinned::origin) when the value is evicted.
    pub origin: Option<TierOrigin>,
}

impl<'a, K> TierRead<'a, K> {
    /// Makes a read without an origin yet.
    pub fn new(key: &'a K, into: &'a mut [u8]) -> Self {
        TierRead { key, into, origin: None }
    }
}

/// A tier below a cache, such as a disk or a cluster: it takes what the cache evicts, and gives it
/// back. See [`KvCacheBuilder::lower_tier`](crate::cache::KvCacheBuilder::lower_tier).
///
/// Threads call it at once. Values and invalidations of one key must take effect one after the
/// other.
pub trait LowerTier<K>: Send + Sync {
    /// Takes an evicted value, which replaces an older one. Under the lock that orders the changes
    /// of a key it asks whether the value [is superseded](Pinned::is_superseded), and does not
    /// store it then.
    ///
    /// A tier that does not want the value removes an older one of the key, and returns `Ok`. If it
    /// still has the very value, which its [origin](Pinned::origin) tells, it need not write it.
    ///
    /// # Errors
    /// The tier may still have an older value under the key. The key is not fetched any more, until
    /// the cache is [cleared](crate::cache::KvCache::clear_everywhere).
    fn put(&self, value: &Pinned<K>) -> Result<(), LowerTierError>;

    /// Takes several evicted values of different keys, as [`put`](Self::put) takes each; returns
    /// the result of each in the same order. The default calls `put`.
    fn put_all(&self, values: &[Pinned<K>]) -> Vec<Result<(), LowerTierError>> {
        values.iter().map(|value| self.put(value)).collect()
    }

    /// Returns the length of the value of each key in bytes, `None` where there is none.
    fn lengths(&self, keys: &[&K]) -> Vec<Option<usize>>;

    /// Reads values into place; returns for each whether its bytes are whole and right. The value
    /// may have gone, or have another length, since [`lengths`](Self::lengths). A tier that names
    /// its values sets the [origin](TierRead::origin) of what it has read.
    fn fetch(&self, reads: &mut [TierRead<'_, K>]) -> Vec<bool>;

    /// Removes the value of a key.
    ///
    /// # Errors
    /// The tier may still have a value under the key.
    fn invalidate(&self, key: &K) -> Result<(), LowerTierError>;

    /// Removes every value.
    ///
    /// # Errors
    /// The tier may still have values.
    fn clear(&self) -> Result<(), LowerTierError>;

    /// Makes everything that was put and removed before as durable as the tier can. The default
    /// does nothing.
    ///
    /// # Errors
    /// Something may be lost at the end of the process or by a power cut.
    fn sync(&self) -> Result<(), LowerTierError> {
        Ok(())
    }

    /// Waits until the tier has released values more than `seen` times, of those that it keeps
    /// pinned, and returns how often it has. `None`: it keeps none, and has released none since.
    ///
    /// An insertion that finds nothing to evict calls it before it fails. The default is for a tier
    /// that keeps no pin after [`put`](Self::put) has returned.
    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        let _ = seen;
        None
    }
}
