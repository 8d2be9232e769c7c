//! [`Chain`]: two lower tiers, one below the other.

use std::sync::Arc;

use kvmem::cache::{LowerTier, LowerTierError, Pinned, TierRead};

/// Two lower tiers below a cache, such as a disk above a cluster. Either may be a chain again, or
/// have a queue of its own ([`WriteBehind`](kvmem::cache::WriteBehind)), and either may be
/// a trait object.
///
/// - *A value that the cache evicts* goes to both. What the upper tier evicts is therefore in the
///   lower one already, and costs neither a read nor a write then.
/// - *A fetch* asks the upper tier, and the lower one for the rest. A value that the lower tier had
///   is in memory then, and goes to the upper tier again when memory evicts it.
/// - *Removals* are made to both. A value counts as taken if both took it: if one of them failed,
///   it may have an older one.
pub struct Chain<U: ?Sized, L: ?Sized> {
    upper: Arc<U>,
    lower: Arc<L>,
}

impl<U: ?Sized, L: ?Sized> Chain<U, L> {
    /// Puts `upper` above `lower`.
    #[must_use]
    pub fn new(upper: Arc<U>, lower: Arc<L>) -> Self {
        Chain { upper, lower }
    }

    /// Returns the tier that is asked first.
    #[must_use]
    pub fn upper(&self) -> &Arc<U> {
        &self.upper
    }

    /// Returns the tier that is asked for the rest.
    #[must_use]
    pub fn lower(&self) -> &Arc<L> {
        &self.lower
    }
}

/// Returns the first error. Both calls have been made.
fn both(
    upper: Result<(), LowerTierError>,
    lower: Result<(), LowerTierError>,
) -> Result<(), LowerTierError> {
    upper.and(lower)
}

impl<K, U, L> LowerTier<K> for Chain<U, L>
where
    U: LowerTier<K> + ?Sized,
    L: LowerTier<K> + ?Sized,
{
    fn put(&self, value: &Pinned<K>) -> Result<(), LowerTierError> {
        both(self.upper.put(value), self.lower.put(value))
    }

    fn put_all(&self, values: &[Pinned<K>]) -> Vec<Result<(), LowerTierError>> {
        let (upper, lower) = (self.upper.put_all(values), self.lower.put_all(values));
        upper.into_iter().zip(lower).map(|(upper, lower)| both(upper, lower)).collect()
    }

    fn lengths(&self, keys: &[&K]) -> Vec<Option<usize>> {
        let mut lengths = self.upper.lengths(keys);
        let missing: Vec<usize> = (0..keys.len()).filter(|&i| lengths[i].is_none()).collect();
        if !missing.is_empty() {
            let wanted: Vec<&K> = missing.iter().map(|&index| keys[index]).collect();
            for (index, len) in missing.into_iter().zip(self.lower.lengths(&wanted)) {
                lengths[index] = len;
            }
        }
        lengths
    }

    fn fetch(&self, reads: &mut [TierRead<'_, K>]) -> Vec<bool> {
        let mut whole = self.upper.fetch(reads);
        let (mut missing, mut wanted) = (Vec::new(), Vec::new());
        for (index, TierRead { key, into, .. }) in reads.iter_mut().enumerate() {
            if !whole[index] {
                missing.push(index);
                wanted.push(TierRead::new(*key, into));
            }
        }
        if !wanted.is_empty() {
            let fetched = self.lower.fetch(&mut wanted);
            let origins: Vec<_> = wanted.iter().map(|read| read.origin).collect();
            for ((index, fetched), origin) in missing.into_iter().zip(fetched).zip(origins) {
                whole[index] = fetched;
                reads[index].origin = origin;
            }
        }
        whole
    }

    fn invalidate(&self, key: &K) -> Result<(), LowerTierError> {
        both(self.upper.invalidate(key), self.lower.invalidate(key))
    }

    fn clear(&self) -> Result<(), LowerTierError> {
        both(self.upper.clear(), self.lower.clear())
    }

    fn sync(&self) -> Result<(), LowerTierError> {
        both(self.upper.sync(), self.lower.sync())
    }

    /// Waits for the upper tier, or for the lower one if the upper one keeps no value.
    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        self.upper.wait_for_release(seen).or_else(|| self.lower.wait_for_release(seen))
    }
}
