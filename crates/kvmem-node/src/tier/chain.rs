//! [`TierChain`]: one tier of a node below another one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{NodeTier, TierRead, TierState};

/// A tier that answers at once, such as a disk, above one that is far, such as a cluster.
///
/// A value that is stored goes to both: it waits for the upper one alone, and the lower one
/// [takes](NodeTier::offer) what it has room for. Keys that the upper one has are fetched from it,
/// others from the lower one.
pub struct TierChain {
    upper: Arc<dyn NodeTier>,
    lower: Arc<dyn NodeTier>,
}

impl TierChain {
    /// Puts `upper` above `lower`.
    #[must_use]
    pub fn new(upper: Arc<dyn NodeTier>, lower: Arc<dyn NodeTier>) -> TierChain {
        TierChain { upper, lower }
    }
}

impl TierChain {
    /// Reads each value from the tier that has it.
    fn fetch_from_both<R: Clone + Default>(
        &self,
        reads: &mut [TierRead<'_>],
        fetch: impl Fn(&dyn NodeTier, &mut [TierRead<'_>]) -> Vec<R>,
    ) -> Vec<R> {
        let near: Vec<bool> = reads.iter().map(|it| self.upper.len_of(it.key).is_some()).collect();
        let mut done = vec![R::default(); reads.len()];
        for (tier, is_near) in [(&self.upper, true), (&self.lower, false)] {
            let places: Vec<usize> = (0..reads.len()).filter(|at| near[*at] == is_near).collect();
            let mut part: Vec<TierRead<'_>> = reads
                .iter_mut()
                .zip(&near)
                .filter(|(_, near)| **near == is_near)
                .map(|(read, _)| TierRead { key: read.key, into: &mut *read.into })
                .collect();
            if part.is_empty() {
                continue;
            }
            let fetched = fetch(&**tier, &mut part);
            places.into_iter().zip(fetched).for_each(|(at, fetched)| done[at] = fetched);
        }
        done
    }
}

impl std::fmt::Debug for TierChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierChain").finish_non_exhaustive()
    }
}

impl NodeTier for TierChain {
    fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool> {
        self.lower.offer(values);
        self.upper.store(values)
    }

    fn offer(&self, values: &[(&[u8], &[u8])]) {
        self.lower.offer(values);
        self.upper.offer(values);
    }

    fn len_of(&self, key: &[u8]) -> Option<u64> {
        self.upper.len_of(key).or_else(|| self.lower.len_of(key))
    }

    fn touch(&self, key: &[u8]) -> bool {
        // Both have it.
        let lower = self.lower.touch(key);
        self.upper.touch(key) || lower
    }

    fn evictions(&self) -> u64 {
        self.upper.evictions().wrapping_add(self.lower.evictions())
    }

    fn knows_all(&self) -> bool {
        self.upper.knows_all() && self.lower.knows_all()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        self.lower.look_up(keys)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
        self.fetch_from_both(reads, |tier, reads| tier.fetch(reads))
    }

    fn fetch_with_checksums(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<u32>> {
        self.fetch_from_both(reads, |tier, reads| tier.fetch_with_checksums(reads))
    }

    fn is_far(&self, key: &[u8]) -> bool {
        self.upper.len_of(key).is_none() && self.lower.is_far(key)
    }

    /// Removes from both, whether or not one of them fails.
    fn remove(&self, keys: &[&[u8]]) -> bool {
        let lower = self.lower.remove(keys);
        self.upper.remove(keys) && lower
    }

    fn clear(&self) -> bool {
        let lower = self.lower.clear();
        self.upper.clear() && lower
    }

    fn forget_unknown(&self) -> bool {
        let lower = self.lower.forget_unknown();
        self.upper.forget_unknown() && lower
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        self.upper.keep_open(file.try_clone()?)?;
        self.lower.keep_open(file)
    }

    fn state(&self) -> TierState {
        match self.upper.state() {
            TierState::Working => self.lower.state(),
            state => state,
        }
    }
}
