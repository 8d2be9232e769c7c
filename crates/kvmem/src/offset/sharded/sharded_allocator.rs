//! *ShardedAllocator*: the shared interface of a space with shards.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::cuts::ShardCuts;
use super::homes::Homes;
use crate::offset::allocator::{Allocation, OffsetAllocator, SpaceHandle};
use crate::offset::error::{AllocError, CheckError};
use crate::offset::heap::{BinReport, MapRange, Metrics};
use crate::sync::thread_number;

/// Allocates ranges of an abstract space that is cut into shards with a lock each; never touches
/// the bytes.
///
/// `Send + Sync`; clones share one space. Its allocations are those of an [`OffsetAllocator`]: they
/// free themselves in their shard when dropped, by any thread, and may outlive the allocator.
/// [`OffsetAllocatorBuilder::shards`](crate::offset::OffsetAllocatorBuilder::shards) creates it.
///
/// # Time complexity
///
/// Those of [`OffsetAllocator`] while the thread's home shard can serve; otherwise O(shards) loads
/// more, and a lock for each shard whose hint says that it can.
///
/// # Drawbacks
///
/// No allocation is longer than a shard, and less of the space can be used. Ranges of a fresh space
/// do not follow each other from offset 0 up: threads begin in different shards. A request fails
/// after each shard has failed it, one after the other, so it can fail although a range was free
/// all the time, first in one shard and then in another. Figures are the sums of the shards', each
/// read at a moment of its own.
///
/// ```
/// use kvmem::offset::OffsetAllocator;
///
/// let space = OffsetAllocator::builder(1 << 40).shards(16).build()?;
/// let kv = space.allocate(3_274_752)?;
/// let index = space.allocate_aligned(658_432, 4096)?;
/// assert_eq!(index.offset() % 4096, 0);
/// assert_eq!(space.metrics().allocated, 3_274_752 + 658_432);
/// drop((kv, index));
/// assert_eq!(space.metrics().largest_free, 1 << 36);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShardedAllocator {
    /// In the order of their offsets, and of their identities.
    pub(super) shards: Arc<[OffsetAllocator]>,
    pub(super) cuts: ShardCuts,
    homes: Homes,
    /// The length of the longest shard.
    longest: u64,
}

impl ShardedAllocator {
    /// Creates the allocator of empty shards, which lie as `cuts` says.
    pub(super) fn new(shards: Arc<[OffsetAllocator]>, cuts: ShardCuts) -> Self {
        let (longest, homes) = (cuts.longest(), Homes::new(cuts.len()));
        ShardedAllocator { shards, cuts, homes, longest }
    }

    /// Returns the calling thread's home shard.
    #[inline]
    pub(super) fn home(&self) -> usize {
        self.homes.of(thread_number())
    }

    /// Returns the shards in a ring behind the home shard, and without it.
    pub(super) fn others(&self, home: usize) -> impl Iterator<Item = &OffsetAllocator> {
        let (before, behind) = self.shards.split_at(home);
        behind.iter().skip(1).chain(before)
    }

    /// Runs `attempt`, a request for `size` bytes, with the home shard, and with the others until
    /// it succeeds.
    #[inline(always)]
    pub(super) fn serve<T>(
        &self,
        size: u64,
        attempt: impl Fn(&OffsetAllocator) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let home = self.home();
        match attempt(&self.shards[home]) {
            Ok(served) => Ok(served),
            Err(error) => self.steal(home, size, error, attempt),
        }
    }

    /// Runs `attempt` with the shards besides the home shard, which has failed it with `error`.
    #[inline(never)]
    fn steal<T>(
        &self,
        home: usize,
        size: u64,
        error: AllocError,
        attempt: impl Fn(&OffsetAllocator) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let mut failure = self.shard_failed(size, error)?;
        for shard in self.others(home) {
            match attempt(shard) {
                Ok(served) => return Ok(served),
                Err(full @ AllocError::TooManyRanges { .. }) => failure = Some(full),
                // Not in this shard.
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| self.out_of_space(size)))
    }

    /// Returns the error of a shard if no other shard can serve the request either. Otherwise
    /// returns the error that the request fails with if they cannot, if it is known.
    pub(super) fn shard_failed(
        &self,
        size: u64,
        error: AllocError,
    ) -> Result<Option<AllocError>, AllocError> {
        match error {
            AllocError::TooManyRanges { .. } => Ok(Some(error)),
            AllocError::OutOfSpace { .. } => Ok(None),
            AllocError::TooLarge { .. } => self.check_size(size).map(|()| None),
            other => Err(other),
        }
    }

    /// Checks that some shard could serve `size` bytes if it were empty.
    fn check_size(&self, requested: u64) -> Result<(), AllocError> {
        match self.boundary() {
            Some(limit) if limit <= self.longest && requested > limit => {
                Err(AllocError::TooLarge { requested, limit })
            }
            _ if requested > self.longest => {
                Err(AllocError::ShardTooShort { requested, shard: self.longest })
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of a request that no shard could serve, from what they have published. A
    /// shard whose hint says that it could is searched under its lock: while threads contend for
    /// that, the hint is the length of the shard.
    #[cold]
    pub(super) fn out_of_space(&self, requested: u64) -> AllocError {
        let free = self.shards.iter().map(|shard| SpaceHandle::of(shard).free_hint()).sum();
        let largest = |shard: &OffsetAllocator| match shard.largest_free_hint() {
            hint if hint < requested => hint,
            _ => shard.metrics().largest_free,
        };
        let largest_free = self.shards.iter().map(largest).max().unwrap_or(0);
        AllocError::OutOfSpace { requested, free, largest_free }
    }

    /// Allocates `size` bytes. O(1) while the home shard can serve, else O(shards).
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`] for 0 bytes, [`AllocError::ShardTooShort`] above the
    /// [longest shard](Self::longest_shard), [`AllocError::TooLarge`] above the boundary,
    /// [`AllocError::OutOfSpace`] if no shard has a free range that is long enough,
    /// [`AllocError::TooManyRanges`] if the only shards that have one are at their limit of ranges,
    /// of which it names one.
    #[inline]
    pub fn allocate(&self, size: u64) -> Result<Allocation, AllocError> {
        self.serve(size, |shard| shard.allocate(size))
    }

    /// Allocates `size` bytes that begin at a multiple of `align`, a power of two, as
    /// [`OffsetAllocator::allocate_aligned`] does. Offsets are those of the space, whatever the
    /// shard.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate), and [`AllocError::BadAlign`] if `align` is not a
    /// power of two.
    pub fn allocate_aligned(&self, size: u64, align: u64) -> Result<Allocation, AllocError> {
        self.serve(size, |shard| shard.allocate_aligned(size, align))
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Returns the length of the longest shard, in bytes: no request above it can succeed.
    #[must_use]
    pub fn longest_shard(&self) -> u64 {
        self.longest
    }

    /// Returns the length of the space in bytes, without a lock. O(1).
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.cuts.capacity()
    }

    /// Returns the boundary that no allocation crosses, in bytes. Shards begin at its multiples.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        self.shards[0].boundary()
    }

    /// Returns an upper bound of the largest free range, in bytes, without a lock: the greatest
    /// [hint](OffsetAllocator::largest_free_hint) of the shards. O(shards).
    #[must_use]
    pub fn largest_free_hint(&self) -> u64 {
        self.shards.iter().map(OffsetAllocator::largest_free_hint).max().unwrap_or(0)
    }

    /// Returns the figures of the space: the sums of the [shards'](Self::shard_metrics), and the
    /// longest free range of all. O(shards).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut sum = Metrics::default();
        self.shards.iter().for_each(|shard| sum.add(&shard.metrics()));
        sum.metadata_bytes += size_of_val(&*self.shards) as u64;
        sum
    }

    /// Returns the figures of each shard, in the order of their offsets. O(shards).
    #[must_use]
    pub fn shard_metrics(&self) -> Vec<Metrics> {
        self.shards.iter().map(OffsetAllocator::metrics).collect()
    }

    /// Returns a report for every bin that is non-empty in some shard, by ascending size. O(free
    /// ranges).
    #[must_use]
    pub fn bins(&self) -> Vec<BinReport> {
        let mut all: BTreeMap<u64, BinReport> = BTreeMap::new();
        for report in self.shards.iter().flat_map(OffsetAllocator::bins) {
            let empty = BinReport { ranges: 0, bytes: 0, ..report };
            let sum = all.entry(report.size_min).or_insert(empty);
            sum.ranges += report.ranges;
            sum.bytes += report.bytes;
        }
        all.into_values().collect()
    }

    /// Returns the whole space in address order: a range for every allocation, and one for each
    /// free range that [`metrics`](Self::metrics) and [`bins`](Self::bins) count. Free ranges of
    /// two shards stay apart, because no allocation can take both. O(ranges).
    #[must_use]
    pub fn map(&self) -> Vec<MapRange> {
        self.shards.iter().flat_map(OffsetAllocator::map).collect()
    }

    /// Checks the metadata of each shard, as [`OffsetAllocator::check`] does. O(ranges).
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.shards.iter().try_for_each(OffsetAllocator::check)
    }
}

impl fmt::Debug for ShardedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedAllocator")
            .field("capacity", &self.capacity())
            .field("shards", &self.shards())
            .field("boundary", &self.boundary())
            .finish()
    }
}
