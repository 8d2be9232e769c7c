//! [`DiskTier`] and [`TierSet`] as the tier of a node.

use std::io;
use std::os::fd::OwnedFd;

use kvmem_tier::device::Device;
use kvmem_tier::{DiskTier, Fetch, Fetched, TierSet, TierStats};

use super::{NodeTier, TierRead, TierState};

/// Implements the trait by the functions of the same names.
macro_rules! node_tier {
    ($tier:ident, |$it:ident| $is_read_only:expr) => {
        impl<D: Device> NodeTier for $tier<D> {
            fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool> {
                let stored: Vec<bool> =
                    $tier::store(self, values).into_iter().map(|it| it.is_ok()).collect();
                let lost: Vec<&[u8]> = values
                    .iter()
                    .zip(&stored)
                    .filter(|(_, stored)| !**stored)
                    .map(|((key, _), _)| *key)
                    .collect();
                if !lost.is_empty() {
                    // If this fails too, the journal is broken, and the tier finds nothing any
                    // more.
                    let _ = NodeTier::remove(self, &lost);
                }
                stored
            }

            fn len_of(&self, key: &[u8]) -> Option<u64> {
                $tier::len_of(self, key)
            }

            fn touch(&self, key: &[u8]) -> bool {
                $tier::touch(self, key)
            }

            fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
                let mut requests: Vec<Fetch<'_>> =
                    reads.iter_mut().map(|it| Fetch { key: it.key, into: &mut *it.into }).collect();
                let fetched = $tier::fetch(self, &mut requests);
                fetched.into_iter().map(|fetched| fetched == Fetched::Hit).collect()
            }

            fn fetch_with_checksums(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<u32>> {
                let mut requests: Vec<Fetch<'_>> =
                    reads.iter_mut().map(|it| Fetch { key: it.key, into: &mut *it.into }).collect();
                let fetched = $tier::fetch_with_checksums(self, &mut requests);
                fetched.into_iter().map(Result::ok).collect()
            }

            /// A value that a power cut would bring back is removed only with a sync.
            fn remove(&self, keys: &[&[u8]]) -> bool {
                $tier::remove(self, keys).is_ok() && $tier::sync_all(self).is_ok()
            }

            fn clear(&self) -> bool {
                $tier::clear(self).is_ok()
            }

            fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
                $tier::keep_open(self, file)
            }

            fn evictions(&self) -> u64 {
                let TierStats { evictions, checksum_misses, lost_misses, .. } = $tier::stats(self);
                evictions + checksum_misses + lost_misses
            }

            fn state(&self) -> TierState {
                let $it = self;
                if $is_read_only { TierState::ReadOnly } else { TierState::Working }
            }
        }
    };
}

node_tier!(DiskTier, |tier| tier.stats().read_only);
// A set stores the keys of those tiers that work.
node_tier!(TierSet, |set| set.tiers().iter().all(|tier| tier.stats().read_only));
