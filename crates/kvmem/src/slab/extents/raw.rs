//! *Raw handles*: extents named by plain data, for C and Python, without a lock.
//!
//! As in the offset layer, a raw handle holds the identity of its allocator, the slot of its range,
//! and the generation that the slot had when the handle was made. The offset layer keeps
//! generations in its metadata, but a cached range never reaches the metadata. So the generations
//! here are in a separate table by slot, which only grows; each is stored next to the range that it
//! names. Freeing a handle invalidates its generation with one compare-and-swap. If two threads
//! free the same handle, one of them gets the range and the other one gets an error.

use std::ops;

use crate::offset::{AllocError, Allocation, LONG, RawAllocation, RawError, RawHandle};

use super::cache::ExtentCache;
use super::extent::Extent;
use super::raw_table::RawEntry;

/// Raw handles: extents named by plain data, for foreign-function interfaces. A hot size takes no
/// lock.
impl ExtentCache {
    /// Allocates a range of `size` bytes that lives until [`free_raw`](Self::free_raw) or until the
    /// space ends. O(1). See [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// Returns the errors of
    /// [`OffsetAllocator::allocate`](crate::offset::OffsetAllocator::allocate).
    pub fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.allocate(size).map(|extent| self.issue_raw(extent, size))
    }

    /// Allocates a range at a multiple of `align` that lives until [`free_raw`](Self::free_raw) or
    /// until the space ends. See [`allocate_aligned`](Self::allocate_aligned).
    ///
    /// # Errors
    /// Returns the errors of
    /// [`OffsetAllocator::allocate_aligned`](crate::offset::OffsetAllocator::allocate_aligned).
    pub fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        self.allocate_aligned(size, align).map(|extent| self.issue_raw(extent, size))
    }

    /// Converts an extent of this space into a raw handle. O(1).
    ///
    /// # Errors
    /// Returns the extent if it belongs to another space.
    pub fn make_raw(&self, extent: Extent) -> Result<RawAllocation, Extent> {
        if extent.allocation().core_index() != self.space.index() {
            return Err(extent);
        }
        let size = extent.len();
        Ok(self.issue_raw(extent, size))
    }

    fn issue_raw(&self, extent: Extent, size: u64) -> RawAllocation {
        let allocation = extent.into_allocation();
        let raw = self.instance.issue_raw(allocation.as_range(), self.id(), size);
        allocation.forget();
        raw
    }

    /// Frees a raw extent and returns its size in bytes. O(1).
    ///
    /// # Errors
    /// Returns [`RawError::Foreign`] if the handle belongs to another allocator, and
    /// [`RawError::Stale`] if its extent was freed. Nothing is changed then.
    ///
    /// ```
    /// use kvmem::offset::RawError;
    /// use kvmem::slab::ExtentCache;
    ///
    /// let space = ExtentCache::new(1 << 30)?;
    /// let a = space.allocate_raw(4096)?;
    /// assert_eq!(space.free_raw(a.handle), Ok(4096));
    /// assert!(matches!(space.free_raw(a.handle), Err(RawError::Stale { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_raw(&self, handle: RawHandle) -> Result<u64, RawError> {
        self.adopt_raw(handle).map(|extent| extent.len())
    }

    /// Returns the offsets of a raw extent. O(1).
    ///
    /// # Errors
    /// Returns [`RawError::Foreign`] if the handle belongs to another allocator, and
    /// [`RawError::Stale`] if its extent was freed.
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<ops::Range<u64>, RawError> {
        let (offset, size) =
            self.entry(handle)?.read(handle.generation).ok_or_else(|| stale(handle))?;
        if size != LONG {
            return Ok(offset..offset + u64::from(size));
        }
        // The metadata hold its length.
        self.with_taken(handle, |allocation| Ok(allocation.range()))
    }

    /// Returns the raw extent of a slot, if it has one; see
    /// [`OffsetAllocator::raw_at`](crate::offset::OffsetAllocator::raw_at). O(1).
    #[must_use]
    pub fn raw_at(&self, slot: u32) -> Option<RawAllocation> {
        let generation = self.instance.raw.find(slot)?.generation();
        let handle = RawHandle { allocator: self.id(), slot, generation };
        // If the generation is not live, or changed meanwhile, the slot has, or had, no raw extent.
        let range = self.resolve_raw(handle).ok()?;
        Some(RawAllocation { handle, offset: range.start, size: range.end - range.start })
    }

    /// Returns all live raw extents in the order of their offsets. Read at about one moment while
    /// other threads may continue. O(n log n), where n is the largest number of ranges that ever
    /// existed at once.
    #[must_use]
    pub fn raw_allocations(&self) -> Vec<RawAllocation> {
        let slots = self.instance.raw.slots();
        let mut all: Vec<RawAllocation> = slots.filter_map(|slot| self.raw_at(slot)).collect();
        all.sort_unstable_by_key(|one| one.offset);
        all
    }

    /// Shortens a raw extent; the handle stays valid. See [`Extent::shrink`].
    ///
    /// # Errors
    /// Returns [`RawError::Foreign`] if the handle belongs to another allocator,
    /// [`RawError::Stale`] if its extent was freed, and [`RawError::Failed`] with the error of
    /// [`Extent::shrink`].
    pub fn shrink_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_taken(handle, |allocation| {
            self.instance.before_shrink(allocation, new_size);
            Ok(self.instance.with_reclaim(|| allocation.shrink(new_size))?)
        })
    }

    /// Extends a raw extent; the handle stays valid. See [`Extent::extend`].
    ///
    /// # Errors
    /// Returns [`RawError::Foreign`] if the handle belongs to another allocator,
    /// [`RawError::Stale`] if its extent was freed, and [`RawError::Failed`] with the error of
    /// [`Extent::extend`].
    pub fn extend_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_taken(handle, |allocation| Ok(self.instance.extend(allocation, new_size)?))
    }

    /// Converts a raw extent into an [`Extent`]; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// Returns [`RawError::Foreign`] if the handle belongs to another allocator, and
    /// [`RawError::Stale`] if its extent was freed.
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Extent, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        let taken = self.entry(handle)?.adopt(generation, self.space, slot);
        taken.map(Extent::new).ok_or_else(|| stale(handle))
    }

    /// Returns the number of live raw extents, at about one moment while other threads may
    /// continue. O(n), where n is the largest number of ranges that ever existed at once.
    #[must_use]
    pub fn raw_extents(&self) -> u64 {
        self.instance.raw.live()
    }

    /// Runs `run` on the range while other users of the handle wait.
    fn with_taken<T>(
        &self,
        handle: RawHandle,
        run: impl FnOnce(&mut Allocation) -> Result<T, RawError>,
    ) -> Result<T, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        let done = self.entry(handle)?.with_taken(generation, self.space, slot, run);
        done.unwrap_or_else(|| Err(stale(handle)))
    }

    /// Returns the entry that a handle of this space names.
    fn entry(&self, handle: RawHandle) -> Result<&RawEntry, RawError> {
        let RawHandle { allocator, slot, .. } = handle;
        if allocator != self.id() {
            return Err(RawError::Foreign { allocator: self.id(), handle_of: allocator });
        }
        self.instance.raw.find(slot).ok_or_else(|| stale(handle))
    }

    fn id(&self) -> u64 {
        self.allocator().id()
    }
}

#[cold]
fn stale(handle: RawHandle) -> RawError {
    RawError::Stale { slot: handle.slot, generation: handle.generation }
}
