//! *Raw face*: extents named by plain data, for C and Python, without a lock.
//!
//! As in the offset layer a raw handle carries the identity of its allocator, the slot of its range
//! and the seal that was put on the slot. But a cached range never comes to the books, where the
//! offset layer keeps its seals. So here the seals stand in a table of their own that only grows,
//! by slot, each beside what it names. One compare-and-swap breaks a seal; of two threads that free
//! the same handle one gets the range and the other is told.
//!
//! A seal is a number whose lowest bit says that it is whole, and the next that somebody is
//! changing the range's length and others have to wait. The rest counts: a stale handle could pass
//! only if exactly a multiple of 2^30 handles were made since of the same slot.

use std::ops;

use crate::offset::{
    AllocError, Allocation, Ground, LONG, Range, RawAllocation, RawError, RawHandle,
};
use crate::sync::{AtomicU32, AtomicU64, Backoff, FIRST, Ordering, Stable, fence};

use super::cache::ExtentCache;
use super::extent::Extent;

/// The seal is whole.
const LIVE: u32 = 1;
/// Its range is being changed.
const BUSY: u32 = 2;
/// From one seal to the next.
const STEP: u32 = 4;

/// Whether a handle may bear this seal.
fn is_live(seal: u32) -> bool {
    seal & (LIVE | BUSY) == LIVE
}

/// A slot's seal, and what it names.
struct RawEntry {
    seal: AtomicU32,
    /// Length as the handle knows it.
    size: AtomicU32,
    offset: AtomicU64,
}

impl RawEntry {
    const fn new() -> Self {
        RawEntry { seal: AtomicU32::new(0), size: AtomicU32::new(0), offset: AtomicU64::new(0) }
    }

    /// Puts the next seal on a slot, whose range is the caller's.
    fn seal(&self, extent: Extent) -> u32 {
        let allocation = extent.into_allocation();
        // Relaxed: nobody else changes a seal that is not whole.
        let seal = (self.seal.load(Ordering::Relaxed) & !(LIVE | BUSY)).wrapping_add(STEP) | LIVE;
        // Release pairs with the Acquire fence in `look`: who sees these sees the last seal broken.
        fence(Ordering::Release);
        self.store(allocation);
        // Release pairs with the Acquire in `take`, and in `look`.
        self.seal.store(seal, Ordering::Release);
        seal
    }

    /// Relaxed, all: ordered by the seal.
    fn store(&self, allocation: Allocation) {
        self.size.store(allocation.as_range().size(), Ordering::Relaxed);
        self.offset.store(allocation.offset(), Ordering::Relaxed);
        allocation.forget();
    }

    /// Breaks the seal, or makes it busy; `None` if it is not whole. `to` is what it becomes.
    fn take(&self, seal: u32, to: u32) -> Option<()> {
        if !is_live(seal) {
            return None;
        }
        let mut backoff = Backoff::default();
        loop {
            // Acquire pairs with the Release in `seal` and `with_taken`. Relaxed: nothing is read
            // then.
            match self.seal.compare_exchange(seal, to, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(()),
                Err(now) if now == seal | BUSY => backoff.pause(),
                Err(_) => return None,
            }
        }
    }

    /// What is under the seal; `None` if it is not whole.
    fn look(&self, seal: u32) -> Option<(u64, u32)> {
        if !is_live(seal) {
            return None;
        }
        let mut backoff = Backoff::default();
        loop {
            // Acquire pairs with the Release in `seal` and `with_taken`.
            let before = self.seal.load(Ordering::Acquire);
            // Relaxed, both: the seal is looked at before and after.
            let found = (self.offset.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
            // Acquire pairs with the Release fences in `seal` and `with_taken`.
            fence(Ordering::Acquire);
            // Relaxed: the fence.
            match self.seal.load(Ordering::Relaxed) {
                now if now == seal && before == seal => return Some(found),
                now if now | BUSY == seal | BUSY => backoff.pause(),
                _ => return None,
            }
        }
    }

    /// The range under a seal that the caller has taken.
    fn allocation(&self, ground: Ground, slot: u32) -> Allocation {
        // Relaxed, both: the caller's `take`.
        let (offset, size) =
            (self.offset.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
        ground.allocation(Range::new(offset, size, slot))
    }
}

/// The seals of a space, and of those that had its core before: a handle says which allocator it is
/// of.
pub(super) struct RawTable(Stable<RawEntry>);

impl RawTable {
    pub(super) fn new() -> Self {
        RawTable(Stable::new([const { RawEntry::new() }; FIRST], RawEntry::new))
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Seals that are whole.
    fn live(&self) -> u64 {
        // Relaxed: a number, of about one moment while others go on.
        self.0.iter().filter(|(_, entry)| entry.seal.load(Ordering::Relaxed) & LIVE != 0).count()
            as u64
    }

    /// Frees all that is named by a seal: nobody has the space any more.
    pub(super) fn close(&self, ground: Ground) {
        for (slot, entry) in self.0.iter() {
            // Relaxed, both: nobody else is there.
            let seal = entry.seal.load(Ordering::Relaxed);
            if seal & LIVE != 0 {
                entry.seal.store(seal & !(LIVE | BUSY), Ordering::Relaxed);
                drop(entry.allocation(ground, slot));
            }
        }
    }

    /// Nobody changes a range: for a forked child, which has one thread. Those that others were
    /// changing are as the books say.
    pub(super) fn postfork_child(&self, ground: Ground) {
        for (slot, entry) in self.0.iter() {
            // Relaxed, all: there is one thread.
            let seal = entry.seal.load(Ordering::Relaxed);
            if seal & BUSY != 0 {
                let allocation =
                    ground.allocation(Range::new(entry.offset.load(Ordering::Relaxed), LONG, slot));
                entry
                    .size
                    .store(u32::try_from(allocation.size()).unwrap_or(LONG), Ordering::Relaxed);
                allocation.forget();
                entry.seal.store(seal & !BUSY, Ordering::Relaxed);
            }
        }
    }
}

/// The raw face: extents named by plain data, for FFI. A hot size takes no lock.
impl ExtentCache {
    /// As [`allocate`](Self::allocate), but the extent lives until [`free_raw`](Self::free_raw), or
    /// as long as the space. O(1).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.allocate(size).map(|extent| self.seal(extent, size))
    }

    /// As [`allocate_aligned`](Self::allocate_aligned), raw.
    ///
    /// # Errors
    /// As [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        self.allocate_aligned(size, align).map(|extent| self.seal(extent, size))
    }

    /// Turns an extent of this space into a raw one. O(1).
    ///
    /// # Errors
    /// The extent, if it is of another space.
    pub fn seal_raw(&self, extent: Extent) -> Result<RawAllocation, Extent> {
        if extent.allocation().core_index() != self.ground.index() {
            return Err(extent);
        }
        let size = extent.size();
        Ok(self.seal(extent, size))
    }

    fn seal(&self, extent: Extent, size: u64) -> RawAllocation {
        let (slot, offset) = (extent.allocation().as_range().node(), extent.offset());
        let generation = self.instance.raw.0.get(slot).seal(extent);
        RawAllocation { handle: RawHandle { allocator: self.id(), slot, generation }, offset, size }
    }

    /// Frees a raw extent; returns its size in bytes. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`], [`RawError::Stale`]; nothing is changed then.
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
        self.adopt_raw(handle).map(|extent| extent.size())
    }

    /// Where a raw extent lies. O(1).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<ops::Range<u64>, RawError> {
        let (offset, size) =
            self.entry(handle)?.look(handle.generation).ok_or_else(|| stale(handle))?;
        if size != LONG {
            return Ok(offset..offset + u64::from(size));
        }
        // Its length is in the books.
        self.with_taken(handle, |allocation| Ok(allocation.range()))
    }

    /// As [`OffsetAllocator::raw_at`](crate::offset::OffsetAllocator::raw_at). O(1).
    #[must_use]
    pub fn raw_at(&self, slot: u32) -> Option<RawAllocation> {
        // Acquire pairs with the Release in `seal`.
        let generation = self.instance.raw.0.find(slot)?.seal.load(Ordering::Acquire) & !BUSY;
        let handle = RawHandle { allocator: self.id(), slot, generation };
        // Broken, or another by now: then there is none, or there was none.
        let range = self.resolve_raw(handle).ok()?;
        Some(RawAllocation { handle, offset: range.start, size: range.end - range.start })
    }

    /// All raw extents that are alive, in the order of their offsets; of about one moment while
    /// other threads go on. O(n log n) for the most ranges that ever were on the books.
    #[must_use]
    pub fn raw_allocations(&self) -> Vec<RawAllocation> {
        let slots = self.instance.raw.0.iter().map(|(slot, _)| slot);
        let mut all: Vec<RawAllocation> = slots.filter_map(|slot| self.raw_at(slot)).collect();
        all.sort_unstable_by_key(|one| one.offset);
        all
    }

    /// As [`Extent::shrink`], raw; the handle stays good.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), and [`RawError::Refused`] with what [`Extent::shrink`]
    /// says.
    pub fn shrink_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_taken(handle, |allocation| {
            Ok(self.instance.with_reclaim(|| allocation.shrink(new_size))?)
        })
    }

    /// As [`Extent::extend`], raw; the handle stays good.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), and [`RawError::Refused`] with what [`Extent::extend`]
    /// says.
    pub fn extend_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_taken(handle, |allocation| {
            Ok(self.instance.with_reclaim(|| allocation.extend(new_size))?)
        })
    }

    /// Turns a raw extent into an RAII one; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Extent, RawError> {
        let entry = self.entry(handle)?;
        entry.take(handle.generation, handle.generation & !LIVE).ok_or_else(|| stale(handle))?;
        Ok(Extent::new(entry.allocation(self.ground, handle.slot)))
    }

    /// Raw extents alive, of about one moment while other threads go on. O(the most ranges that
    /// ever were on the books).
    #[must_use]
    pub fn raw_extents(&self) -> u64 {
        self.instance.raw.live()
    }

    /// Runs with the range while others who have the handle wait.
    fn with_taken<T>(
        &self,
        handle: RawHandle,
        run: impl FnOnce(&mut Allocation) -> Result<T, RawError>,
    ) -> Result<T, RawError> {
        let entry = self.entry(handle)?;
        entry.take(handle.generation, handle.generation | BUSY).ok_or_else(|| stale(handle))?;
        // Release pairs with the Acquire fence in `look`: who sees what follows sees the seal busy.
        fence(Ordering::Release);
        let mut allocation = entry.allocation(self.ground, handle.slot);
        let done = run(&mut allocation);
        entry.store(allocation);
        // Release pairs with the Acquire in `take` and `look`.
        entry.seal.store(handle.generation, Ordering::Release);
        done
    }

    /// The entry that a handle of this space names.
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
