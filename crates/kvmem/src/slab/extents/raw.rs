//! *Raw handles*: extents named by plain data, for C and Python, without a lock.
//!
//! As in the offset layer, a raw handle holds the identity of its allocator, the slot of its range,
//! and the generation that the slot had when the handle was made. The offset layer keeps
//! generations in its metadata, but a cached range never reaches the metadata. So the generations
//! here are in a separate table by slot, which only grows; each is stored beside the range that it
//! names. Freeing a handle invalidates its generation with one compare-and-swap. If two threads
//! free the same handle, one of them gets the range and the other one gets an error.
//!
//! The lowest bit of a generation says that it is live. The next bit says that a thread is changing
//! the range's length and others have to wait. The rest is a counter: a stale handle could be
//! accepted only if a multiple of exactly 2^30 handles were made for the same slot since.

use std::ops;

use crate::offset::{
    AllocError, Allocation, LONG, Range, RawAllocation, RawError, RawHandle, SpaceHandle,
};
use crate::sync::{AppendOnlyTable, AtomicU32, AtomicU64, Backoff, FIRST, Ordering, fence};

use super::cache::ExtentCache;
use super::extent::Extent;

/// The generation is live: a handle names the slot's range.
const LIVE: u32 = 1;
/// A thread is changing the range.
const BUSY: u32 = 2;
/// The distance from one generation to the next.
const STEP: u32 = 4;

/// Returns whether a valid handle can have this generation.
fn is_live(generation: u32) -> bool {
    generation & (LIVE | BUSY) == LIVE
}

/// A slot's generation and the range that it names.
struct RawEntry {
    generation: AtomicU32,
    /// Length as handles store it.
    size: AtomicU32,
    offset: AtomicU64,
}

impl RawEntry {
    const fn new() -> Self {
        RawEntry {
            generation: AtomicU32::new(0),
            size: AtomicU32::new(0),
            offset: AtomicU64::new(0),
        }
    }

    /// Makes the next generation live for a range; returns the generation.
    fn issue(&self, extent: Extent) -> u32 {
        let allocation = extent.into_allocation();
        // Relaxed: no other thread changes a generation that is not live.
        let generation =
            (self.generation.load(Ordering::Relaxed) & !(LIVE | BUSY)).wrapping_add(STEP) | LIVE;
        // Release pairs with the Acquire fence in `read`: a reader that sees these values sees that
        // the last generation is no longer live.
        fence(Ordering::Release);
        self.store(allocation);
        // Release pairs with the Acquire in `take` and in `read`.
        self.generation.store(generation, Ordering::Release);
        generation
    }

    /// Stores the range. Relaxed, all: ordered by the generation.
    fn store(&self, allocation: Allocation) {
        self.size.store(allocation.as_range().size(), Ordering::Relaxed);
        self.offset.store(allocation.offset(), Ordering::Relaxed);
        allocation.forget();
    }

    /// Replaces a live generation by `to`, which is not live or busy; returns `None` if it is not
    /// live.
    fn take(&self, generation: u32, to: u32) -> Option<()> {
        if !is_live(generation) {
            return None;
        }
        let mut backoff = Backoff::default();
        loop {
            // Acquire pairs with the Release in `issue` and `with_taken`. Relaxed: on failure
            // nothing is read.
            match self.generation.compare_exchange(
                generation,
                to,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(()),
                Err(now) if now == generation | BUSY => backoff.pause(),
                Err(_) => return None,
            }
        }
    }

    /// Returns the offset and the size that a generation names; `None` if it is not live.
    fn read(&self, generation: u32) -> Option<(u64, u32)> {
        if !is_live(generation) {
            return None;
        }
        let mut backoff = Backoff::default();
        loop {
            // Acquire pairs with the Release in `issue` and `with_taken`.
            let before = self.generation.load(Ordering::Acquire);
            // Relaxed, both: the generation is loaded before and after.
            let found = (self.offset.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
            // Acquire pairs with the Release fences in `issue` and `with_taken`.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            match self.generation.load(Ordering::Relaxed) {
                now if now == generation && before == generation => return Some(found),
                now if now | BUSY == generation | BUSY => backoff.pause(),
                _ => return None,
            }
        }
    }

    /// Returns the range after the caller has taken the generation.
    fn allocation(&self, space: SpaceHandle, slot: u32) -> Allocation {
        // Relaxed, both: ordered by the caller's `take`.
        let (offset, size) =
            (self.offset.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
        space.allocation(Range::new(offset, size, slot))
    }
}

/// The generations of a space, and of earlier spaces with the same core. A handle names its
/// allocator, so it cannot be confused with theirs.
pub(super) struct RawTable(AppendOnlyTable<RawEntry>);

impl RawTable {
    pub(super) fn new() -> Self {
        RawTable(AppendOnlyTable::new([const { RawEntry::new() }; FIRST], RawEntry::new))
    }

    /// Returns the size on the heap in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Returns the number of live generations.
    fn live(&self) -> u64 {
        // Relaxed: a statistic, read at about one moment.
        self.0
            .iter()
            .filter(|(_, entry)| entry.generation.load(Ordering::Relaxed) & LIVE != 0)
            .count() as u64
    }

    /// Frees all ranges that raw handles name. No code can reach the space any more.
    pub(super) fn close(&self, space: SpaceHandle) {
        for (slot, entry) in self.0.iter() {
            // Relaxed, both: no other thread uses the table.
            let generation = entry.generation.load(Ordering::Relaxed);
            if generation & LIVE != 0 {
                entry.generation.store(generation & !(LIVE | BUSY), Ordering::Relaxed);
                drop(entry.allocation(space, slot));
            }
        }
    }

    /// Repairs the table in a forked child, which has one thread. Ranges that other threads were
    /// changing get their lengths from the metadata.
    pub(super) fn postfork_child(&self, space: SpaceHandle) {
        for (slot, entry) in self.0.iter() {
            // Relaxed, all: the process has one thread.
            let generation = entry.generation.load(Ordering::Relaxed);
            if generation & BUSY != 0 {
                let allocation =
                    space.allocation(Range::new(entry.offset.load(Ordering::Relaxed), LONG, slot));
                entry
                    .size
                    .store(u32::try_from(allocation.len()).unwrap_or(LONG), Ordering::Relaxed);
                allocation.forget();
                entry.generation.store(generation & !BUSY, Ordering::Relaxed);
            }
        }
    }
}

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
        let (slot, offset) = (extent.allocation().as_range().node(), extent.offset());
        let generation = self.instance.raw.0.get(slot).issue(extent);
        RawAllocation { handle: RawHandle { allocator: self.id(), slot, generation }, offset, size }
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
        // Acquire pairs with the Release in `issue`.
        let generation = self.instance.raw.0.find(slot)?.generation.load(Ordering::Acquire) & !BUSY;
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
        let slots = self.instance.raw.0.iter().map(|(slot, _)| slot);
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
        self.with_taken(handle, |allocation| {
            Ok(self.instance.with_reclaim(|| allocation.extend(new_size))?)
        })
    }

    /// Converts a raw extent into an [`Extent`]; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// Returns [`RawError::Foreign`] if the handle belongs to another allocator, and
    /// [`RawError::Stale`] if its extent was freed.
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Extent, RawError> {
        let entry = self.entry(handle)?;
        entry.take(handle.generation, handle.generation & !LIVE).ok_or_else(|| stale(handle))?;
        Ok(Extent::new(entry.allocation(self.space, handle.slot)))
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
        let entry = self.entry(handle)?;
        entry.take(handle.generation, handle.generation | BUSY).ok_or_else(|| stale(handle))?;
        // Release pairs with the Acquire fence in `read`: a reader that sees a later store sees the
        // generation busy.
        fence(Ordering::Release);
        let mut allocation = entry.allocation(self.space, handle.slot);
        let done = run(&mut allocation);
        entry.store(allocation);
        // Release pairs with the Acquire in `take` and `read`.
        entry.generation.store(handle.generation, Ordering::Release);
        done
    }

    /// Returns the entry that a handle of this space names.
    fn entry(&self, handle: RawHandle) -> Result<&RawEntry, RawError> {
        let RawHandle { allocator, slot, .. } = handle;
        if allocator != self.id() {
            return Err(RawError::Foreign { allocator: self.id(), handle_of: allocator });
        }
        self.instance.raw.0.find(slot).ok_or_else(|| stale(handle))
    }

    fn id(&self) -> u64 {
        self.allocator().id()
    }
}

#[cold]
fn stale(handle: RawHandle) -> RawError {
    RawError::Stale { slot: handle.slot, generation: handle.generation }
}
