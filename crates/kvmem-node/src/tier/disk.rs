//! [`DiskTier`] as the tier of a node.

use kvmem_tier::device::Device;
use kvmem_tier::{DiskTier, Fetch, Fetched};

use super::{NodeTier, TierRead, TierState};

impl<D: Device> NodeTier for DiskTier<D> {
    fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool> {
        let stored: Vec<bool> =
            DiskTier::store(self, values).into_iter().map(|outcome| outcome.is_ok()).collect();
        let lost: Vec<&[u8]> = values
            .iter()
            .zip(&stored)
            .filter(|(_, stored)| !**stored)
            .map(|((key, _), _)| *key)
            .collect();
        if !lost.is_empty() {
            // If this fails too, the journal is broken, and the tier finds nothing any more.
            let _ = DiskTier::remove(self, &lost);
        }
        stored
    }

    fn len_of(&self, key: &[u8]) -> Option<u64> {
        DiskTier::len_of(self, key)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
        let mut requests: Vec<Fetch<'_>> =
            reads.iter_mut().map(|it| Fetch { key: it.key, into: &mut *it.into }).collect();
        let fetched = DiskTier::fetch(self, &mut requests);
        fetched.into_iter().map(|fetched| fetched == Fetched::Hit).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> bool {
        DiskTier::remove(self, keys).is_ok()
    }

    fn clear(&self) -> bool {
        DiskTier::clear(self).is_ok()
    }

    fn state(&self) -> TierState {
        if self.stats().read_only { TierState::ReadOnly } else { TierState::Working }
    }
}
