//! [`Pool`]: the four layers combined.

use super::blocks::PoolMemory;
use super::observe::{Latency, LatencyFigures};
use super::owner::Owner;
use super::provision::ProvisionFigures;
use super::{Block, PoolError, PoolReport};
use crate::offset::{AllocError, BinReport, CheckError, Metrics};
use crate::register::{RegistrationBuilder, RegistrationSet};
use crate::slab::{Extent, ExtentCache, ExtentMapRange, ExtentStats};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Memory that is mapped, populated, registered, and allocated in blocks.
///
/// `Send + Sync`; clones share one pool. [Blocks](Block) may outlive it: the memory is released
/// with the last pool or block.
///
/// # Time complexity
///
/// Allocating and freeing are O(1). For a hot size they take about two nanoseconds more than
/// [`ExtentCache`] does. See each method for the exceptions.
///
/// # Drawbacks
///
/// Large blocks do not fit across the edge of a part (see
/// [`boundary`](super::PoolBuilder::boundary)). Dropping the last pool waits for the thread that
/// provisions it, if there is one, for at most one call of a registrar. A forked child has no
/// memory at these addresses.
#[derive(Clone)]
pub struct Pool {
    pub(super) space: ExtentCache,
    pub(super) memory: Arc<PoolMemory>,
    owner: Arc<Owner>,
    /// Measures the duration of requests, if the builder requested it.
    latency: Option<Arc<Latency>>,
}

impl Pool {
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
    /// [`PoolError::Allocate`] with the error of the offset layer; [`PoolError::NotReady`] if the
    /// parts that are ready have no space and others are still being provisioned.
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
            // SAFETY: the extent is of the pool's space.
            Ok(extent) => Ok(unsafe { self.block(extent) }),
            Err(error) => self.fail(error, || {
                let extent = self.space.allocate(len as u64)?;
                // SAFETY: the extent is of the pool's space.
                Ok(unsafe { self.block(extent) })
            }),
        }
    }

    /// Allocates a block of `len` bytes whose first address is a multiple of `align`, a power of
    /// two. O(1).
    ///
    /// If `align` is at most the size of the pool's largest pages, the offset is a multiple of it
    /// too, and nothing is wasted. Otherwise the block is cut out of a block that is longer by
    /// `align`, which must fit.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn allocate_aligned(&self, len: usize, align: usize) -> Result<Block, PoolError> {
        let aligned =
            1usize << self.memory.base().addr().get().trailing_zeros().min(usize::BITS - 1);
        if align <= aligned || !align.is_power_of_two() {
            let extent = self.serve(|| self.space.allocate_aligned(len as u64, align as u64));
            // SAFETY: the extent is of the pool's space.
            return extent.map(|extent| unsafe { self.block(extent) });
        }
        if len == 0 {
            return self.fail(AllocError::ZeroSize, || Err(AllocError::ZeroSize));
        }
        let longer = len.checked_add(align - aligned).map_or(u64::MAX, |longer| longer as u64);
        let allocate_longer = || self.space.allocate_aligned(longer, aligned as u64);
        let extent = self.serve(|| {
            allocate_longer().map_err(|error| error.of_aligned(len as u64, align as u64))
        })?;
        // SAFETY: the extent is of the pool's space.
        let block = unsafe { self.block(extent) };
        let skip = block.as_ptr().addr().next_multiple_of(align) - block.as_ptr().addr();
        block.narrow(skip..skip + len)
    }

    /// Allocates `n` blocks of `len` bytes each, all of them or none, under one lock. O(n).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn allocate_batch(&self, len: usize, n: usize) -> Result<Vec<Block>, PoolError> {
        let extents = self.serve(|| self.space.allocate_batch(len as u64, n))?;
        // SAFETY: the extents are of the pool's space.
        Ok(unsafe { self.blocks(extents) })
    }

    /// Allocates `total` bytes in at most `max_blocks` blocks, as few and as long as possible.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn allocate_scattered(
        &self,
        total: usize,
        max_blocks: usize,
    ) -> Result<Vec<Block>, PoolError> {
        let extents = self.serve(|| self.space.allocate_scattered(total as u64, max_blocks))?;
        // SAFETY: the extents are of the pool's space.
        Ok(unsafe { self.blocks(extents) })
    }

    /// Frees many blocks under one lock. Neighbours are coalesced first, and no block is cached:
    /// use it for sizes that will not be requested again. Blocks of another pool are freed there.
    pub fn free_batch(&self, run: impl IntoIterator<Item = Block>) {
        let number = self.space.number();
        let ours = run.into_iter().filter(|block| block.space() == number);
        self.space.free_batch(ours.map(Block::into_extent));
    }

    /// Makes a block from an extent.
    ///
    /// # Safety
    /// The extent is of the pool's space.
    #[inline(always)]
    pub(super) unsafe fn block(&self, extent: Extent) -> Block {
        // SAFETY: building the pool attached its memory to its space, of which the extent is.
        unsafe { Block::over(extent) }
    }

    /// Makes blocks from extents.
    ///
    /// # Safety
    /// All extents are of the pool's space.
    #[inline(always)]
    unsafe fn blocks(&self, extents: Vec<Extent>) -> Vec<Block> {
        // SAFETY: the condition of this function is that of `block`.
        extents.into_iter().map(|extent| unsafe { self.block(extent) }).collect()
    }

    /// Attempts a request, and counts it if it fails.
    fn serve<T>(&self, attempt: impl Fn() -> Result<T, AllocError>) -> Result<T, PoolError> {
        attempt().or_else(|error| self.fail(error, attempt))
    }

    /// Counts a failed request and returns its error. In the background the last part may have
    /// become ready meanwhile; then the request is attempted again.
    #[cold]
    #[inline(never)]
    pub(super) fn fail<T>(
        &self,
        error: AllocError,
        again: impl FnOnce() -> Result<T, AllocError>,
    ) -> Result<T, PoolError> {
        let error = match error {
            AllocError::OutOfSpace { requested, .. } if self.owner.plan.in_background => {
                if self.is_initializing() {
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

    /// Returns the pool's name in [metrics](super::observe) and traces.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.owner.provisioning.provisioner.name
    }

    /// Returns the durations of the measured requests; `None` if requests are not
    /// [measured](super::PoolBuilder::measure_latency).
    #[must_use]
    pub fn latency(&self) -> Option<LatencyFigures> {
        self.latency.as_deref().map(Latency::figures)
    }

    /// Returns the length of the longest block that the pool could ever have, without a lock.
    pub(crate) fn limit_hint(&self) -> u64 {
        self.space.limit_hint()
    }

    /// Returns whether bytes are set to zero between two users of them.
    pub(crate) fn clears_bytes(&self) -> bool {
        self.space.has_hooks()
    }

    /// Returns the bytes that blocks can have if all of the pool is ready and nothing is in
    /// quarantine.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.space.capacity()
    }

    /// Returns the first address. A block at offset `n` begins `n` bytes further on. The mapping
    /// is [`max_bytes`](PoolReport::max_bytes) long.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.base().as_ptr()
    }

    /// Returns the bytes that are populated, registered, and not in quarantine, in use or free.
    #[must_use]
    pub fn ready_bytes(&self) -> u64 {
        self.owner.provisioning.ready()
    }

    /// Waits until `bytes` are ready, until provisioning ends, or until `timeout` is over. Returns
    /// the number of bytes that are ready then.
    pub fn wait_ready(&self, bytes: u64, timeout: Duration) -> u64 {
        self.owner.provisioning.wait(bytes, timeout)
    }

    /// Returns whether parts are still being provisioned.
    #[must_use]
    pub fn is_initializing(&self) -> bool {
        self.owner.provisioning.is_initializing()
    }

    /// Withholds the bytes of a block from use until the pool ends. Use it for a block that an
    /// error of a device or of the memory has shown to be bad. The report lists it as
    /// [quarantined](PoolReport::quarantined). A block of another pool is only freed.
    pub fn quarantine_block(&self, block: Block, why: impl Into<String>) {
        if block.space() == self.space.number() {
            self.owner.provisioning.quarantine_block(block, why.into());
        }
    }

    /// Returns the ranges that threads have cached to the free ranges, which coalesces neighbours.
    /// No page goes back to the kernel; [`shrink_to`](Self::shrink_to) does that. O(threads ×
    /// classes + cached ranges).
    pub fn trim(&self) {
        self.space.trim();
    }

    /// Returns the composition of the pool and the steps that built it, in the current state.
    #[must_use]
    pub fn report(&self) -> PoolReport {
        self.owner.report(self.capacity())
    }

    /// Returns the names of the registrars, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        self.report().devices
    }

    /// Returns the boundary in bytes, which no block straddles; `None`: the pool has no boundary.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        self.space.boundary()
    }

    /// Returns figures of the ready bytes: bytes that are not ready or are in quarantine are in no
    /// figure. Cached ranges count as free. The figures are approximate while other threads
    /// allocate and free. O(threads × classes + parts that are not ready).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let ProvisionFigures { withheld: bytes, ranges, .. } =
            self.owner.provisioning.state().figures();
        let mut metrics = self.space.metrics();
        metrics.allocated = metrics.allocated.saturating_sub(bytes);
        metrics.capacity = metrics.capacity.saturating_sub(bytes);
        metrics.free = metrics.capacity.saturating_sub(metrics.allocated);
        metrics.live = metrics.live.saturating_sub(ranges);
        metrics
    }

    /// Returns the statistics of the cache of hot sizes; see [`ExtentCache::stats`].
    #[must_use]
    pub fn stats(&self) -> ExtentStats {
        self.space.stats()
    }

    /// Returns the free ranges by size; see [`ExtentCache::bins`]. Cached ranges are freed first.
    #[must_use]
    pub fn bins(&self) -> Vec<BinReport> {
        self.space.bins()
    }

    /// Returns all ranges of the pool in order of addresses; see [`ExtentCache::map`]. Ranges that
    /// are not ready, or are in quarantine, appear as used.
    #[must_use]
    pub fn map(&self) -> Vec<ExtentMapRange> {
        self.space.map()
    }

    /// Checks the metadata of the offset allocator against its numbered invariants. O(ranges).
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

impl Pool {
    /// Registers the memory of the pool, as long as it is now, with the registrars of `with`,
    /// in addition to those that the pool was built with. Returns a set for each part of the pool;
    /// the memory stays mapped until the sets are dropped.
    ///
    /// [`Block::key`](super::Block::key) and [`devices`](Self::devices) do not know these
    /// registrars: the caller looks for keys in the sets. Parts by which the pool
    /// [grows](Self::grow_to) later are in no set. While a set exists, [shrinking](Self::shrink_to)
    /// the pool below the end of its part fails to return the pages to the kernel.
    ///
    /// # Errors
    /// [`PoolError::Initializing`]; the errors of [`RegistrationBuilder::register_batch`]. Nothing
    /// is registered then.
    pub fn register_with(
        &self,
        with: &RegistrationBuilder,
    ) -> Result<Vec<RegistrationSet>, PoolError> {
        let _alone = self.owner().resizing();
        if self.is_initializing() {
            return Err(PoolError::Initializing);
        }
        let parts = self.memory.parts_in(0..self.capacity() as usize);
        Ok(with.register_batch(parts.iter().map(|part| part.region.clone()))?)
    }
}
