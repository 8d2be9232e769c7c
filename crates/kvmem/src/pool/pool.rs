//! [`Pool`]: the four layers combined.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::memory::PoolMemory;
use super::observe::{Latency, LatencyFigures};
use super::owner::Owner;
use super::provisioning::ProvisionFigures;
use super::{Block, PoolBuilder, PoolError, PoolReport, PoolSize};
use crate::offset::{AllocError, BinReport, CheckError, Metrics};
use crate::slab::{Extent, ExtentCache, ExtentMapRange, ExtentStats};

/// PoolMemory that is mapped, populated, registered, and allocated in blocks.
///
/// `Send + Sync`; clones share one pool. [Blocks](Block) may outlive it: the memory is released
/// with the last pool or block.
///
/// # Time complexity
///
/// Allocate and free are O(1), and for a hot size take what [`ExtentCache`] takes and some two
/// nanoseconds. See each method for the exceptions.
///
/// # Drawbacks
///
/// Large blocks do not fit across the edge of a part (see [`boundary`](PoolBuilder::boundary)).
/// Dropping the last pool waits for the thread that provisions it, if there is one, for at most one
/// call of a registrar. A forked child has no memory at these addresses.
#[derive(Clone)]
pub struct Pool {
    pub(super) space: ExtentCache,
    pub(super) memory: Arc<PoolMemory>,
    owner: Arc<Owner>,
    /// Measures the time of requests, if requested.
    latency: Option<Arc<Latency>>,
}

impl Pool {
    /// Returns a builder of a pool of at least this size.
    pub fn builder(size: impl Into<PoolSize>) -> PoolBuilder {
        PoolBuilder::new(size.into())
    }

    pub(super) fn new(
        space: ExtentCache,
        memory: Arc<PoolMemory>,
        owner: Arc<Owner>,
        latency: Option<Arc<Latency>>,
    ) -> Pool {
        Pool { space, memory, owner, latency }
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Allocates a block of `len` bytes. O(1), some nanoseconds for a hot size.
    ///
    /// # Errors
    /// [`PoolError::Allocate`] with what the offset layer says; [`PoolError::NotReady`] if there is
    /// no room in what is ready yet.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Block, PoolError> {
        match &self.latency {
            None => self.allocate_unmeasured(len),
            Some(latency) => self.allocate_measured(latency, len),
        }
    }

    #[inline(never)]
    fn allocate_measured(&self, latency: &Latency, len: usize) -> Result<Block, PoolError> {
        latency.measure(|| self.allocate_unmeasured(len))
    }

    #[inline(always)]
    fn allocate_unmeasured(&self, len: usize) -> Result<Block, PoolError> {
        match self.space.allocate(len as u64) {
            Ok(extent) => Ok(self.block(extent)),
            Err(error) => self
                .fail(error, || self.space.allocate(len as u64).map(|extent| self.block(extent))),
        }
    }

    /// A block of `len` bytes whose first address is a multiple of `align`, a power of two. O(1).
    ///
    /// Up to the size of the pool's largest pages its offset is a multiple too, and nothing is
    /// wasted. Beyond, the block is cut out of one that is longer by `align`, for which there
    /// has to be room.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_aligned(&self, len: usize, align: usize) -> Result<Block, PoolError> {
        let aligned =
            1usize << self.memory.base().addr().get().trailing_zeros().min(usize::BITS - 1);
        if align <= aligned || !align.is_power_of_two() {
            let extent = self.serve(|| self.space.allocate_aligned(len as u64, align as u64));
            return extent.map(|extent| self.block(extent));
        }
        if len == 0 {
            return self.fail(AllocError::ZeroSize, || Err(AllocError::ZeroSize));
        }
        let longer = len.checked_add(align - aligned).map_or(u64::MAX, |longer| longer as u64);
        let cut = || self.space.allocate_aligned(longer, aligned as u64);
        let extent =
            self.serve(|| cut().map_err(|error| error.of_aligned(len as u64, align as u64)))?;
        let block = self.block(extent);
        let skip = block.as_ptr().addr().next_multiple_of(align) - block.as_ptr().addr();
        block.narrow(skip..skip + len)
    }

    /// `n` blocks of `len` bytes each, all of them or none, under one lock. O(n).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_batch(&self, len: usize, n: usize) -> Result<Vec<Block>, PoolError> {
        Ok(self.blocks(self.serve(|| self.space.allocate_batch(len as u64, n))?))
    }

    /// `total` bytes in at most `max_blocks` blocks, as few and as long as can be had.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_scattered(
        &self,
        total: usize,
        max_blocks: usize,
    ) -> Result<Vec<Block>, PoolError> {
        Ok(self.blocks(self.serve(|| self.space.allocate_scattered(total as u64, max_blocks))?))
    }

    /// Frees many blocks under one lock, neighbours joined first, and none of them cached: for
    /// those that will not come again. Blocks of another pool go back to theirs.
    pub fn free_batch(&self, run: impl IntoIterator<Item = Block>) {
        let number = self.space.number();
        let ours = run.into_iter().filter(|block| block.space() == number);
        self.space.free_batch(ours.map(Block::into_extent));
    }

    #[inline(always)]
    fn block(&self, extent: Extent) -> Block {
        // SAFETY: the space was placed when the pool was built, and is never longer than its
        // memory.
        unsafe { Block::over(extent) }
    }

    #[inline(always)]
    fn blocks(&self, extents: Vec<Extent>) -> Vec<Block> {
        extents.into_iter().map(|extent| self.block(extent)).collect()
    }

    /// Runs a request.
    fn serve<T>(&self, attempt: impl Fn() -> Result<T, AllocError>) -> Result<T, PoolError> {
        attempt().or_else(|error| self.fail(error, attempt))
    }

    /// Counts a failed request.
    #[cold]
    #[inline(never)]
    pub(super) fn fail<T>(
        &self,
        error: AllocError,
        again: impl FnOnce() -> Result<T, AllocError>,
    ) -> Result<T, PoolError> {
        let error = match error {
            AllocError::OutOfSpace { requested, .. } if self.owner.plan.in_background => {
                if self.is_under_way() {
                    self.owner.failures.count_not_ready();
                    let (ready, capacity) = (self.ready_bytes(), self.capacity());
                    return Err(PoolError::NotReady { requested, ready, capacity });
                }
                // The last part may have become ready between the failure and this check.
                match again() {
                    Ok(done) => return Ok(done),
                    Err(error) => error,
                }
            }
            error => error,
        };
        self.owner.failures.count(&error);
        Err(PoolError::Allocate(error))
    }

    /// What it is called in [metrics](super::observe) and traces.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.owner.provisioning.provisioner.name
    }

    /// How long requests took, of those that were measured; `None` if none
    /// [are](PoolBuilder::measure_latency).
    #[must_use]
    pub fn latency(&self) -> Option<LatencyFigures> {
        self.latency.as_deref().map(Latency::figures)
    }

    /// Bytes that blocks can have, when all of it is ready and nothing is quarantined.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.space.capacity()
    }

    /// The first address. A block at offset `n` begins `n` bytes further on; what is mapped from
    /// here on is [`max_bytes`](PoolReport::max_bytes) long.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.base().as_ptr()
    }

    /// Bytes that can be used, whether or not they are in use: populated, registered, and not in
    /// quarantine.
    #[must_use]
    pub fn ready_bytes(&self) -> u64 {
        self.owner.provisioning.ready()
    }

    /// Waits until so many bytes are ready, no more will be, or the time is over; returns how many
    /// are ready then.
    pub fn wait_ready(&self, bytes: u64, timeout: Duration) -> u64 {
        self.owner.provisioning.wait(bytes, timeout)
    }

    /// Whether parts are still being made ready.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.owner.provisioning.is_under_way()
    }

    /// Keeps the bytes of a block from use for as long as the pool: for blocks that have turned out
    /// to be bad, by an error of a device, or of the memory. They are reported as
    /// [quarantined](PoolReport::quarantined). A block of another pool is only freed.
    pub fn quarantine_block(&self, block: Block, why: impl Into<String>) {
        if block.space() == self.space.number() {
            self.owner.provisioning.quarantine_block(block, why.into());
        }
    }

    /// Takes back what threads have cached, so that neighbours join. No page is given back;
    /// [`shrink_to`](Self::shrink_to) does that. O(threads × classes + cached ranges).
    pub fn trim(&self) {
        self.space.trim();
    }

    /// What the pool is made of and how it came to be, as it is now.
    #[must_use]
    pub fn report(&self) -> PoolReport {
        self.owner.report(self.capacity())
    }

    /// The registrars' names, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        self.report().devices
    }

    /// What no block straddles, in bytes; `None`: there is no such edge.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        self.space.boundary()
    }

    /// Figures of what is ready: what is not, or is in quarantine, is in none of them. What is
    /// cached counts as free. While other threads go on, of about one moment. O(threads ×
    /// classes + parts that are not ready).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let ProvisionFigures { withheld: bytes, ranges, .. } = self.owner.provisioning.state().figures();
        let mut metrics = self.space.metrics();
        metrics.allocated = metrics.allocated.saturating_sub(bytes);
        metrics.capacity = metrics.capacity.saturating_sub(bytes);
        metrics.free = metrics.capacity.saturating_sub(metrics.allocated);
        metrics.live = metrics.live.saturating_sub(ranges);
        metrics
    }

    /// What is cached, and what has been done; see [`ExtentCache::stats`].
    #[must_use]
    pub fn stats(&self) -> ExtentStats {
        self.space.stats()
    }

    /// The free ranges by size; see [`ExtentCache::bins`]. What is cached is taken back first.
    #[must_use]
    pub fn bins(&self) -> Vec<BinReport> {
        self.space.bins()
    }

    /// All of the pool in order of addresses; see [`ExtentCache::map`]. What is not ready, or is in
    /// quarantine, is shown as used.
    #[must_use]
    pub fn map(&self) -> Vec<ExtentMapRange> {
        self.space.map()
    }

    /// Checks the books of offsets against their numbered invariants. O(ranges).
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.space.check()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("capacity", &self.capacity())
            .field("ready", &self.ready_bytes())
            .field("metrics", &self.metrics())
            .finish_non_exhaustive()
    }
}
