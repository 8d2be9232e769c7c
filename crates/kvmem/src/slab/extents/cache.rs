//! *Extent cache*: a shared space whose hot sizes are served from each thread's own magazines.

use super::extent::Extent;
use super::hooks::RangeHooks;
use super::hot::Detection;
use super::instance::{ExtentInstance, InstanceOptions};
use crate::offset::{AllocError, Allocation, BinReport, OffsetAllocator, SpaceError, SpaceHandle};
use std::any::Any;
use std::sync::Arc;

/// By default one part in this many of a space may be cached.
const DEFAULT_BOUND_SHARE: u64 = 32;

/// An allocator for ranges of an abstract space `[0, capacity)`, like [`OffsetAllocator`], for many
/// threads at once: allocating and freeing a *hot* size takes no lock and no atomic
/// read-modify-write.
///
/// The type is `Send + Sync`, and clones share one space. Extents may outlive it. Hot sizes are
/// [named](super::ExtentBuilder::hot_sizes) or detected from the requests; all others go to the
/// offset layer. No request fails before the cached ranges have been reclaimed.
///
/// # Time complexity
///
/// Allocating and freeing are O(1), and take some nanoseconds for a hot size while the thread's
/// magazines serve it. A request that finds no free range reclaims the cached ranges, if there are
/// any: O(threads × classes + cached ranges), and it stops all threads that use the space for some
/// microseconds.
///
/// # Drawbacks
///
/// Cached ranges are not joined with their neighbours until they are reclaimed. The bound of cached
/// bytes limits how much of the space that can be; see
/// [`max_cached_bytes`](super::ExtentBuilder::max_cached_bytes).
///
/// ```
/// use kvmem::slab::ExtentCache;
///
/// let space = ExtentCache::new(1 << 40)?;
/// for _ in 0..100 {
///     let page = space.allocate(3_274_752)?;
///     drop(page); // no lock is taken from the ninth iteration on
/// }
/// assert_eq!(space.metrics().allocated, 0); // cached ranges count as free
/// assert!(space.stats().cached_ranges > 0);
/// // No request fails because of cached ranges: this one reclaims them.
/// assert_eq!(space.allocate(1 << 40)?.len(), 1 << 40);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ExtentCache {
    pub(super) space: SpaceHandle,
    pub(super) instance: &'static ExtentInstance,
    pub(super) owner: Arc<SpaceOwner>,
}

/// The owner shared by all clones; dropping the last one shuts the instance.
pub(super) struct SpaceOwner {
    instance: &'static ExtentInstance,
    pub(super) allocator: OffsetAllocator,
    /// Whether the bound of cached bytes follows the capacity.
    pub(super) bound_follows: bool,
}

impl Drop for SpaceOwner {
    fn drop(&mut self) {
        // From here on a reference to the space does not find it. A handle that it has found is
        // freed there or here, not twice.
        self.instance.leave();
        let freed = self.instance.hooks.get().and_then(|hooks| hooks.freed);
        self.instance.raw.close(SpaceHandle::of(&self.allocator), freed);
        self.instance.shut();
    }
}

impl ExtentCache {
    pub(super) fn over(
        allocator: OffsetAllocator,
        hot_sizes: &[u32],
        detection: Detection,
        max_cached_bytes: Option<u64>,
    ) -> Self {
        let bound_bytes = max_cached_bytes.unwrap_or_else(|| default_bound(allocator.capacity()));
        let space = SpaceHandle::of(&allocator);
        let instance = ExtentInstance::open(
            space,
            allocator.id(),
            &InstanceOptions { hot_sizes, detection, max_cached_bytes: bound_bytes },
        );
        let owner = SpaceOwner { instance, allocator, bound_follows: max_cached_bytes.is_none() };
        ExtentCache { space, instance, owner: Arc::new(owner) }
    }

    pub(super) fn allocator(&self) -> &OffsetAllocator {
        &self.owner.allocator
    }

    /// Allocates a range of `size` bytes. O(1).
    ///
    /// A request that exceeds all free bytes, cached or not, fails without a lock. If a request
    /// fails, then at some moment during the call it would have failed with nothing cached.
    ///
    /// # Errors
    /// Returns the errors of [`OffsetAllocator::allocate`].
    #[inline]
    pub fn allocate(&self, size: u64) -> Result<Extent, AllocError> {
        self.instance.allocate(size).map(|range| Extent::of(self.space, range))
    }

    /// Returns the addresses of two numbers that show that a request must fail: if the first is
    /// less than its bytes, and the second has the same even value before and after the first is
    /// loaded. They stay mapped as long as the space. Other threads write them: load them
    /// atomically.
    #[doc(hidden)]
    #[must_use]
    pub fn early_failure_addresses(&self) -> (*const u64, *const u32) {
        (self.allocator().largest_free_address(), self.instance.hot.epoch_address())
    }

    /// Returns the longest range that this space could allocate if it were empty. One load, without
    /// a lock.
    #[inline(always)]
    #[must_use]
    pub fn limit_hint(&self) -> u64 {
        self.space.limit_hint()
    }

    /// Returns the error of a request of `size` bytes that exceeds `limit`, a value returned by
    /// [`limit_hint`](Self::limit_hint) just before, or that is 0.
    #[inline]
    #[must_use]
    pub fn fails_early(&self, size: u64, limit: u64) -> AllocError {
        if size == 0 {
            AllocError::ZeroSize
        } else {
            AllocError::TooLarge { requested: size, limit }
        }
    }

    /// Allocates a range at a multiple of `align`; see [`OffsetAllocator::allocate_aligned`]. When
    /// it is dropped, the extent is cached like others of its size.
    ///
    /// # Errors
    /// Returns the errors of [`OffsetAllocator::allocate_aligned`].
    pub fn allocate_aligned(&self, size: u64, align: u64) -> Result<Extent, AllocError> {
        self.instance
            .with_reclaim(|| self.allocator().allocate_aligned(size, align))
            .map(|allocation| self.hand_out(allocation))
    }

    /// Allocates `n` ranges of `size` bytes, all or none, under one lock; see
    /// [`OffsetAllocator::allocate_batch`].
    ///
    /// # Errors
    /// Returns the errors of [`OffsetAllocator::allocate_batch`].
    pub fn allocate_batch(&self, size: u64, n: usize) -> Result<Vec<Extent>, AllocError> {
        let batch = self.instance.with_reclaim(|| self.allocator().allocate_batch(size, n))?;
        Ok(batch.into_iter().map(|one| self.hand_out(one)).collect())
    }

    /// Allocates `total` bytes in at most `max_ranges` ranges; see
    /// [`OffsetAllocator::allocate_scattered`]. Cached ranges are reclaimed only before the request
    /// would fail, and not to serve it with fewer ranges.
    ///
    /// # Errors
    /// Returns the errors of [`OffsetAllocator::allocate_scattered`].
    pub fn allocate_scattered(
        &self,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<Extent>, AllocError> {
        let pieces = self
            .instance
            .with_reclaim(|| self.allocator().allocate_scattered(total, max_ranges))?;
        Ok(pieces.into_iter().map(|one| self.hand_out(one)).collect())
    }

    /// Frees many extents under one lock and joins neighbours first; see
    /// [`OffsetAllocator::free_batch`]. None of them is cached.
    pub fn free_batch(&self, run: impl IntoIterator<Item = Extent>) {
        self.allocator().free_batch(run.into_iter().map(|extent| {
            let instance = extent.instance();
            if let Some(hooks) = instance.hooks.get() {
                instance.run(hooks.freed, extent.allocation().as_range());
            }
            extent.into_allocation()
        }));
    }

    /// Makes an extent of an allocation that is about to get to a caller.
    fn hand_out(&self, allocation: Allocation) -> Extent {
        if let Some(hooks) = self.instance.hooks.get() {
            self.instance.run(hooks.allocated, allocation.as_range());
        }
        Extent::new(allocation)
    }

    /// See [`OffsetAllocator::cut`].
    #[doc(hidden)]
    pub fn cut(&self, shards: u32) {
        self.allocator().cut(shards);
    }

    /// Sets the hooks of the space. Ranges that are in use already pass the hook of freed ranges
    /// too.
    ///
    /// # Safety
    /// The hooks may be called until the last extent of the space is gone, with ranges of the
    /// space.
    pub(crate) unsafe fn set_hooks(&self, hooks: &'static RangeHooks) {
        self.instance.hooks.set(Some(hooks));
    }

    /// Returns whether the space has hooks.
    pub(crate) fn has_hooks(&self) -> bool {
        self.instance.hooks.get().is_some()
    }

    /// Keeps `keepalive` alive until the space and all its extents are gone. It is dropped by the
    /// thread that drops the last of them.
    pub(crate) fn keep(&self, keepalive: Box<dyn Any + Send + Sync>) {
        self.space.keep(keepalive);
    }

    /// Returns the number of the space. No other space has it while this one or an extent of it
    /// exists.
    pub(crate) fn number(&self) -> u32 {
        self.space.index()
    }

    /// Returns the capacity of the space in bytes. O(1).
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.allocator().capacity()
    }

    /// Returns the boundary that no extent crosses, in bytes.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        self.allocator().boundary()
    }

    /// Returns an upper bound of the longest range that can be allocated now, in bytes, without a
    /// lock. It is the longest range that is free in the metadata. If ranges may be cached, it is
    /// the sum of all free bytes, because these may be adjacent to cached ranges. O(1).
    #[must_use]
    pub fn largest_free_hint(&self) -> u64 {
        let magazines = &self.instance.magazines;
        let bound = magazines.consistent_read(|| match magazines.charged() {
            0 => self.space.largest_free_hint(),
            cached => self.space.free_bound().saturating_add(cached),
        });
        // A range that moves between a cache and the metadata may be missing from both numbers.
        bound.unwrap_or(u64::MAX).min(self.space.limit_hint())
    }

    /// Reclaims the cached ranges of all threads and of the depot. Any thread may call it; it stops
    /// the threads that use the space for some microseconds. O(threads × classes + cached ranges).
    pub fn trim(&self) {
        self.instance.magazines.trim();
    }

    /// Returns the free ranges by size after reclaiming the cached ranges; see
    /// [`OffsetAllocator::bins`].
    #[must_use]
    pub fn bins(&self) -> Vec<BinReport> {
        self.instance.magazines.reclaim(|| self.allocator().bins())
    }
}

/// Returns the default bound of cached bytes for a space of `capacity` bytes.
pub(super) fn default_bound(capacity: u64) -> u64 {
    capacity / DEFAULT_BOUND_SHARE
}

impl ExtentCache {
    /// Extends the space to `new_capacity` bytes; see
    /// [`grow_to`](crate::offset::OffsetAllocator::grow_to).
    ///
    /// # Errors
    /// Returns the errors of [`grow_to`](crate::offset::OffsetAllocator::grow_to).
    pub fn grow_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        match self.allocator().grow_to(new_capacity) {
            // Cached ranges occupy metadata nodes.
            Err(SpaceError::TooManyRanges { .. }) => {
                self.instance.magazines.reclaim(|| self.allocator().grow_to(new_capacity))?;
            }
            result => result?,
        }
        self.follow_bound();
        Ok(())
    }

    /// Shrinks the space to `new_capacity` bytes after reclaiming the cached ranges; see
    /// [`shrink_to`](crate::offset::OffsetAllocator::shrink_to).
    ///
    /// # Errors
    /// Returns the errors of [`shrink_to`](crate::offset::OffsetAllocator::shrink_to).
    pub fn shrink_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        self.instance.magazines.reclaim(|| self.allocator().shrink_to(new_capacity))?;
        self.follow_bound();
        Ok(())
    }

    fn follow_bound(&self) {
        if self.owner.bound_follows {
            self.instance.follow_bound(|| default_bound(self.capacity()));
        }
    }
}
