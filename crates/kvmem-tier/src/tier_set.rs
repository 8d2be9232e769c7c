//! [`TierSet`]: values on several devices.
//!
//! A key belongs to one device, by *rendezvous hashing* (Thaler and Ravishankar, *Using Name-Based
//! Mappings to Increase Hit Rates*, 1998): each device has a score for the key, a hash of the key
//! under the identity of its file, and the highest one wins. The order in which the devices are
//! named plays no role. A device that is missing loses its own keys, which spread over the others;
//! all other keys stay where they are.

use std::fmt;
use std::hash::Hasher;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::Region;
use kvmem::pool::Pool;
use kvmem::pool::observe::Stats;
use kvmem::tier::{TierRead, TierValue};
use siphasher::sip128::{Hasher128, SipHasher24};
use thiserror::Error;

use crate::device::{Device, FileDevice, FixedBuffersError};
use crate::side_by_side::side_by_side;
use crate::tier::{
    DiskTier, DiskTierOptions, Fetched, OpenReport, StoreError, TierError, TierStats,
};

/// A set of tiers cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TierSetError {
    /// There is no tier.
    #[error("a set of tiers has at least one: name a file")]
    NoTier,
    /// Two tiers have one identity: one file is a copy of the other.
    #[error("two of the tiers are copies of one file: make one of them anew with `format`")]
    SameIdentity,
    /// A tier cannot be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// Its file.
        path: PathBuf,
        /// The reason.
        source: TierError,
    },
}

/// Disk tiers on several devices, which hold values together. Transfers on different devices run
/// side by side.
///
/// A device may be missing: [`open_available`](Self::open_available) goes on without it, and its
/// keys belong to the others meanwhile. When it comes back, it has the values of the time before: a
/// value that was replaced meanwhile is found in its older form. Keys that are hashes of their
/// values do not have that problem; with others, open such a device with
/// [`format`](DiskTierOptions::format), or [clear](Self::clear) the set.
///
/// ```
/// use kvmem::tier::TierRead;
/// use kvmem_tier::{DiskTierOptions, Fetched, TierSet};
///
/// # let folder = tempfile::tempdir()?;
/// let files = ["nvme0", "nvme1"].map(|name| folder.path().join(name));
/// let options = DiskTierOptions { bytes: Some(8 << 20), ..DiskTierOptions::default() };
/// let (set, _) = TierSet::open(&files, &options)?;
/// let stored = set.store(&[(b"one", b"1"), (b"two", b"22"), (b"three", b"333")]);
/// assert!(stored.iter().all(Result::is_ok));
/// let mut value = [0; 2];
/// assert_eq!(set.fetch(&mut [TierRead { key: b"two", into: &mut value }]), [Fetched::Hit]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TierSet<D: Device = FileDevice> {
    /// In the order of their identities.
    tiers: Vec<DiskTier<D>>,
    identities: Vec<[u8; 16]>,
    /// The positions of the tiers, in the order of the arguments.
    passed: Vec<usize>,
}

impl TierSet<FileDevice> {
    /// Opens the tiers in several files or on several block devices, side by side, and makes those
    /// that are new. `options` hold for each of them.
    ///
    /// # Errors
    /// [`TierSetError`]: one of them cannot be opened, or there is none.
    pub fn open<P: AsRef<Path> + Sync>(
        paths: &[P],
        options: &DiskTierOptions,
    ) -> Result<(Self, Vec<OpenReport>), TierSetError> {
        let opened = open_all(paths, options);
        let (tiers, reports): (Vec<_>, Vec<_>) =
            opened.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok((TierSet::new(tiers)?, reports))
    }

    /// Opens those of the tiers that can be opened; returns the result of each in the same order.
    ///
    /// # Errors
    /// [`TierSetError::NoTier`] if none can be opened, and
    /// [`SameIdentity`](TierSetError::SameIdentity).
    #[allow(clippy::type_complexity)]
    pub fn open_available<P: AsRef<Path> + Sync>(
        paths: &[P],
        options: &DiskTierOptions,
    ) -> Result<(Self, Vec<Result<OpenReport, TierSetError>>), TierSetError> {
        let mut tiers = Vec::new();
        let mut add = |opened: Result<(DiskTier, OpenReport), TierSetError>| {
            opened.map(|(tier, report)| {
                tiers.push(tier);
                report
            })
        };
        let reports = open_all(paths, options).into_iter().map(&mut add).collect();
        Ok((TierSet::new(tiers)?, reports))
    }
}

fn open_all<P: AsRef<Path> + Sync>(
    paths: &[P],
    options: &DiskTierOptions,
) -> Vec<Result<(DiskTier, OpenReport), TierSetError>> {
    side_by_side(paths.iter().collect(), |path: &P| {
        let path = path.as_ref();
        DiskTier::open(path, options)
            .map_err(|source| TierSetError::Open { path: path.to_owned(), source })
    })
}

impl<D: Device> TierSet<D> {
    /// Makes a set of tiers, in any order.
    ///
    /// # Errors
    /// [`TierSetError::NoTier`], [`SameIdentity`](TierSetError::SameIdentity).
    pub fn new(mut tiers: Vec<DiskTier<D>>) -> Result<Self, TierSetError> {
        let passed: Vec<[u8; 16]> = tiers.iter().map(DiskTier::identity).collect();
        tiers.sort_by_key(DiskTier::identity);
        let identities: Vec<[u8; 16]> = tiers.iter().map(DiskTier::identity).collect();
        if tiers.is_empty() {
            return Err(TierSetError::NoTier);
        }
        if identities.windows(2).any(|two| two[0] == two[1]) {
            return Err(TierSetError::SameIdentity);
        }
        let place = |identity| identities.binary_search(identity).unwrap_or_default();
        let passed = passed.iter().map(place).collect();
        Ok(TierSet { tiers, identities, passed })
    }

    /// Returns the tiers.
    #[must_use]
    pub fn tiers(&self) -> &[DiskTier<D>] {
        &self.tiers
    }

    /// Returns the tiers in the order of the arguments: that of the paths that could be
    /// opened.
    pub fn in_path_order(&self) -> impl Iterator<Item = &DiskTier<D>> {
        self.passed.iter().map(|&place| &self.tiers[place])
    }

    /// Returns the tier to which a key belongs. O(tiers).
    #[must_use]
    pub fn tier_of(&self, key: &[u8]) -> &DiskTier<D> {
        &self.tiers[self.place_of(key)]
    }

    pub(crate) fn place_of(&self, key: &[u8]) -> usize {
        let score = |identity: &[u8; 16]| {
            let mut hasher = SipHasher24::new_with_key(identity);
            hasher.write(key);
            hasher.finish128().as_u128()
        };
        let scores = self.identities.iter().map(score).enumerate();
        scores.max_by_key(|&(_, score)| score).map_or(0, |(place, _)| place)
    }

    /// Runs `work` for the elements that belong to each tier, side by side; returns its results in
    /// the order of the elements.
    pub(crate) fn each<T: Send, R: Send>(
        &self,
        elements: impl Iterator<Item = (usize, T)>,
        work: impl Fn(&DiskTier<D>, Vec<T>) -> Vec<R> + Sync,
    ) -> Vec<R>
    where
        D: Sync,
    {
        let mut parts: Vec<(usize, Vec<usize>, Vec<T>)> =
            (0..self.tiers.len()).map(|place| (place, Vec::new(), Vec::new())).collect();
        let mut len = 0;
        for (index, (place, element)) in elements.enumerate() {
            parts[place].1.push(index);
            parts[place].2.push(element);
            len = index + 1;
        }
        parts.retain(|(_, indices, _)| !indices.is_empty());
        let done = side_by_side(parts, |(place, indices, elements)| {
            (indices, work(&self.tiers[place], elements))
        });
        let mut results: Vec<Option<R>> = (0..len).map(|_| None).collect();
        for (indices, of_tier) in done {
            indices.into_iter().zip(of_tier).for_each(|(index, one)| results[index] = Some(one));
        }
        results.into_iter().map(|one| one.expect("a tier returns a result for each")).collect()
    }

    /// Runs `work` for all tiers side by side; returns the first error, if there is one.
    pub(crate) fn all<R: Send, E: Send>(
        &self,
        work: impl Fn(&DiskTier<D>) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        side_by_side(self.tiers.iter().collect(), work).into_iter().collect()
    }

    /// Stores values, as [`DiskTier::store`] does.
    pub fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<Result<(), StoreError>> {
        let placed = values.iter().map(|&(key, value)| (self.place_of(key), (key, value)));
        self.each(placed, |tier, values| tier.store(&values))
    }

    /// Stores values with hints about their worth, as [`DiskTier::store_with`] does.
    pub fn store_with(&self, values: &[TierValue<'_>]) -> Vec<Result<(), StoreError>> {
        let placed = values.iter().map(|&value| (self.place_of(value.key), value));
        self.each(placed, |tier, values| tier.store_with(&values))
    }

    /// Fetches values, as [`DiskTier::fetch`] does.
    pub fn fetch(&self, requests: &mut [TierRead<'_>]) -> Vec<Fetched> {
        let placed = requests
            .iter_mut()
            .map(|TierRead { key, into }| (self.place_of(key), TierRead { key, into }));
        self.each(placed, |tier, mut requests| tier.fetch(&mut requests))
    }

    /// Returns the length of a value in bytes, if there is one. It does not count as used.
    #[must_use]
    pub fn len_of(&self, key: &[u8]) -> Option<u64> {
        self.tier_of(key).len_of(key)
    }

    /// Returns whether a value of a key may be found now or later, as [`DiskTier::may_have`] does.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        self.tier_of(key).may_have(key)
    }

    /// Marks a value as used last; returns whether there is one.
    pub fn touch(&self, key: &[u8]) -> bool {
        self.tier_of(key).touch(key)
    }

    /// Removes the values of keys, as [`DiskTier::remove`] does; returns how many there were.
    ///
    /// # Errors
    /// The first [`TierError`] of a tier. The others have removed theirs.
    pub fn remove(&self, keys: &[&[u8]]) -> Result<usize, TierError> {
        let placed = keys.iter().map(|&key| (self.place_of(key), key));
        let removed = self.each(placed, |tier, keys| {
            let others = keys.len().saturating_sub(1);
            let removed = std::iter::once(tier.remove(&keys));
            removed.chain(std::iter::repeat_with(|| Ok(0)).take(others)).collect()
        });
        removed.into_iter().sum()
    }

    /// Removes every value, durably.
    ///
    /// # Errors
    /// The first [`TierError`] of a tier. The others have removed theirs.
    pub fn clear(&self) -> Result<(), TierError> {
        self.all(DiskTier::clear).map(drop)
    }

    /// Forgets the keys of a namespace on every device, as [`DiskTier::forget_namespace`] does;
    /// returns how many values were removed.
    ///
    /// # Errors
    /// The first [`TierError`] of a tier. The others have forgotten theirs.
    pub fn forget_namespace(&self, name: &[u8]) -> Result<usize, TierError> {
        Ok(self.all(|tier| tier.forget_namespace(name))?.into_iter().sum())
    }

    /// Makes all that was stored and removed before durable, on every device.
    ///
    /// # Errors
    /// The first [`TierError`] of a tier.
    pub fn sync_all(&self) -> Result<(), TierError> {
        self.all(DiskTier::sync_all).map(drop)
    }

    /// Writes the index of every device, as [`DiskTier::checkpoint`] does.
    ///
    /// # Errors
    /// The first [`TierError`] of a tier.
    pub fn checkpoint(&self) -> Result<(), TierError> {
        self.all(DiskTier::checkpoint).map(drop)
    }

    /// Writes the index of every device that has changed, as [`DiskTier::checkpoint_within`] does.
    /// Returns whether all of them are complete.
    ///
    /// # Errors
    /// The first [`TierError`] of a tier.
    pub fn checkpoint_within(&self, time_budget: Duration) -> Result<bool, TierError> {
        let complete = self.all(|tier| tier.checkpoint_within(time_budget))?;
        Ok(complete.into_iter().all(|complete| complete))
    }

    /// Returns the sums of the statistics of all tiers.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let stats = self.tiers.iter().map(DiskTier::stats);
        stats.fold(TierStats::default(), TierStats::plus)
    }
}

impl TierSet<FileDevice> {
    /// Registers the memory of a pool with the rings of every file: see
    /// [`DiskTier::register_memory`].
    ///
    /// # Errors
    /// The first [`FixedBuffersError`] of a device, whose transfers are made as before. The others
    /// have registered the memory.
    pub fn register_memory(&self, pool: &Pool) -> Result<(), FixedBuffersError> {
        let registered: Vec<_> = self.tiers.iter().map(|tier| tier.register_memory(pool)).collect();
        registered.into_iter().collect()
    }

    /// Deregisters the memory of a pool. Does nothing if it is not registered.
    pub fn deregister_memory(&self, pool: &Pool) {
        self.tiers.iter().for_each(|tier| tier.deregister_memory(pool));
    }

    /// Registers the memory of a region with the rings of every file: see
    /// [`DiskTier::register_region`].
    ///
    /// # Errors
    /// The first [`FixedBuffersError`] of a device, as for
    /// [`register_memory`](Self::register_memory).
    pub fn register_region(&self, region: &Arc<Region>) -> Result<(), FixedBuffersError> {
        let registered: Vec<_> =
            self.tiers.iter().map(|tier| tier.register_region(region)).collect();
        registered.into_iter().collect()
    }

    /// Deregisters the memory of a region. Does nothing if it is not registered.
    pub fn deregister_region(&self, region: &Region) {
        self.tiers.iter().for_each(|tier| tier.deregister_region(region));
    }
}

impl<D: Device> TierSet<D> {
    /// Keeps a file open until no transfer of any tier can read or write memory any more: see
    /// [`Device::keep_open`].
    ///
    /// # Errors
    /// The system's error.
    pub fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        self.tiers.iter().try_for_each(|tier| tier.keep_open(file.try_clone()?))
    }
}

impl<D: Device> fmt::Debug for TierSet<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierSet").field("tiers", &self.tiers.len()).finish_non_exhaustive()
    }
}
