//! *OffsetAllocator*: the shared interface of a space.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::allocation::{Allocation, resize_down, resize_up};
use super::core::{SpaceCore, SpaceState};
use super::range::{known_size, short_size};
use super::raw::{RawAllocation, RawHandle};
use super::registry;
use crate::offset::error::{AllocError, CheckError, RawError, SpaceError};
use crate::offset::heap::SizedRange;
use crate::offset::heap::{BinReport, MapRange, Metrics};
use crate::offset::heap::{Heap, Placed};
use crate::offset::placement::Placement;

/// Upper bound of the capacity: 2^63 bytes.
const CAPACITY_MAX: u64 = 1 << 63;

/// Lower bound of [`OffsetAllocatorBuilder::max_ranges`]: a few changes must be possible.
const MIN_RANGES: u32 = 16;

/// Allocates ranges of an abstract space `[0, capacity)`; never touches the bytes.
///
/// `Send + Sync`; clones share one space. Allocations free themselves when dropped and may outlive
/// the allocator.
///
/// # Time complexity
///
/// Allocate and free are O(1). Each method names its exceptions.
///
/// # Drawbacks
///
/// One lock guards the metadata; threads that allocate at the same time queue for it.
///
/// ```
/// use kvmem::offset::OffsetAllocator;
///
/// let space = OffsetAllocator::new(1 << 40)?;
/// let kv = space.allocate(3_274_752)?;
/// let index = space.allocate_aligned(658_432, 4096)?;
/// assert_eq!(index.offset() % 4096, 0);
/// assert_eq!(space.metrics().allocated, 3_274_752 + 658_432);
/// drop((kv, index));
/// assert_eq!(space.metrics().largest_free, 1 << 40);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct OffsetAllocator {
    core: &'static SpaceCore,
    owner: Arc<CoreOwner>,
}

/// Shared by all clones; dropping the last one closes the core.
struct CoreOwner {
    index: u32,
    id: u64,
    boundary: Option<u64>,
}

impl Drop for CoreOwner {
    fn drop(&mut self) {
        if registry::core(self.index).close() {
            registry::release_slot(self.index);
        }
    }
}

/// Settings of a new space; see [`OffsetAllocator::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct OffsetAllocatorBuilder {
    capacity: u64,
    boundary: Option<u64>,
    placement: Placement,
    max_ranges: u32,
}

impl OffsetAllocatorBuilder {
    /// Sets a boundary: no allocation crosses a multiple of `bytes`, nor is longer. Any length is
    /// allowed, not only powers of two.
    pub fn boundary(mut self, bytes: u64) -> Self {
        self.boundary = Some(bytes);
        self
    }

    /// Sets how to choose among the holes that fit.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Limits the number of ranges, used and free; metadata takes at most about 50 bytes per range.
    /// At the limit, requests that would divide a free range fail with
    /// [`AllocError::TooManyRanges`]; exact fits and frees still succeed. The default limit is
    /// about 2^32.
    pub fn max_ranges(mut self, ranges: u32) -> Self {
        self.max_ranges = ranges;
        self
    }

    /// Creates the space. O(1), about 42 KiB whatever the capacity.
    ///
    /// # Errors
    /// [`SpaceError::Capacity`] outside of 1..=2^63, [`SpaceError::ZeroBoundary`] for boundary 0,
    /// [`SpaceError::MaxRanges`] below 16.
    pub fn build(self) -> Result<OffsetAllocator, SpaceError> {
        let OffsetAllocatorBuilder { capacity, boundary, placement, max_ranges } = self;
        check_capacity(capacity)?;
        if boundary == Some(0) {
            return Err(SpaceError::ZeroBoundary);
        }
        if max_ranges < MIN_RANGES {
            return Err(SpaceError::MaxRanges { requested: max_ranges, least: MIN_RANGES });
        }
        let heap = Heap::new(capacity, boundary, placement, max_ranges);
        let (index, id) = registry::acquire_slot();
        let core = registry::core(index);
        core.open(id, heap);
        Ok(OffsetAllocator { core, owner: Arc::new(CoreOwner { index, id, boundary }) })
    }
}

fn check_capacity(requested: u64) -> Result<(), SpaceError> {
    if (1..=CAPACITY_MAX).contains(&requested) {
        Ok(())
    } else {
        Err(SpaceError::Capacity { requested, limit: CAPACITY_MAX })
    }
}

fn check_align(align: u64) -> Result<(), AllocError> {
    if align.is_power_of_two() { Ok(()) } else { Err(AllocError::BadAlign { align }) }
}

impl OffsetAllocator {
    /// Creates a space of `capacity` bytes, 1..=2^63, without boundary, with
    /// [`Placement::Renewal`].
    ///
    /// # Errors
    /// See [`OffsetAllocatorBuilder::build`].
    pub fn new(capacity: u64) -> Result<Self, SpaceError> {
        Self::builder(capacity).build()
    }

    /// Returns a builder for a space of `capacity` bytes with settings of its own.
    ///
    /// ```
    /// use kvmem::offset::OffsetAllocator;
    ///
    /// // Registered in chunks of 1 GiB: no allocation lies across two of them.
    /// let space = OffsetAllocator::builder(64 << 30).boundary(1 << 30).build()?;
    /// let a = space.allocate(600 << 20)?;
    /// let b = space.allocate(600 << 20)?;
    /// assert_ne!(a.offset() >> 30, b.offset() >> 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(capacity: u64) -> OffsetAllocatorBuilder {
        OffsetAllocatorBuilder {
            capacity,
            boundary: None,
            placement: Placement::default(),
            max_ranges: u32::MAX,
        }
    }

    /// Returns the number of its core.
    pub(super) fn core_index(&self) -> u32 {
        self.owner.index
    }

    /// Returns its identity, which is never reused in this process.
    pub(crate) fn id(&self) -> u64 {
        self.owner.id
    }

    fn wrap(&self, placed: Placed, size: u64) -> Allocation {
        Allocation::new(self.owner.index, placed, size)
    }

    fn wrap_all(&self, pieces: Vec<SizedRange>) -> Vec<Allocation> {
        pieces.into_iter().map(|piece| self.wrap(piece.placed, piece.size)).collect()
    }

    /// Allocates `size` bytes. O(1). A request above [`largest_free_hint`](Self::largest_free_hint)
    /// fails without the lock.
    ///
    /// Until something is freed for the first time, ranges follow each other from offset 0 up,
    /// without gaps.
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`] for 0 bytes, [`AllocError::TooLarge`] above the capacity or the
    /// boundary, [`AllocError::OutOfSpace`] if no free range is long enough,
    /// [`AllocError::TooManyRanges`] at the limit of ranges.
    #[inline(always)]
    pub fn allocate(&self, size: u64) -> Result<Allocation, AllocError> {
        Ok(self.wrap(self.core.allocate(size)?, size))
    }

    /// Returns the error of a request of `size` bytes that is longer than `longest`, which
    /// [`largest_free_hint`](Self::largest_free_hint) returned just now, or which is 0. For
    /// interfaces that compare the two before anything else. O(1), without the lock.
    #[inline]
    #[must_use]
    pub fn fails_early(&self, size: u64, longest: u64) -> AllocError {
        self.core.fail_early(size, longest)
    }

    /// Allocates `size` bytes that begin at a multiple of `align`, a power of two. The bytes before
    /// the start stay free.
    ///
    /// O(1). The request succeeds while a free range a little longer than `size + align − 1` exists
    /// (1/32 longer is enough). Otherwise up to 384 free ranges are examined, the longest first; an
    /// aligned start in another range is missed.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate), and [`AllocError::BadAlign`] if `align` is not a
    /// power of two.
    pub fn allocate_aligned(&self, size: u64, align: u64) -> Result<Allocation, AllocError> {
        Ok(self.wrap(self.place_aligned(size, align)?, size))
    }

    fn place_aligned(&self, size: u64, align: u64) -> Result<Placed, AllocError> {
        check_align(align)?;
        self.core.admit(size)?;
        self.core.with(|state| {
            state
                .heap
                .allocate_aligned(size, align)
                .ok_or_else(|| state.heap.allocation_error(size))
        })
    }

    /// Allocates `n` ranges of `size` bytes each under one lock, or none. O(n).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate); [`AllocError::OutOfSpace`] names the bytes of all
    /// ranges together.
    pub fn allocate_batch(&self, size: u64, n: usize) -> Result<Vec<Allocation>, AllocError> {
        if n == 0 {
            return Ok(Vec::new());
        }
        self.core.admit(size).map_err(|error| error.of_batch(size, n))?;
        let pieces = self.core.with(|state| state.heap.allocate_batch(size, n))?;
        Ok(self.wrap_all(pieces))
    }

    /// Allocates `total` bytes in at most `max_ranges` ranges whose sizes add up to `total`, or
    /// nothing. For consumers that gather, such as RDMA with several scatter entries. Returns one
    /// range if one fits.
    ///
    /// O(`max_ranges`).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate), and [`AllocError::NoRanges`] if `max_ranges` is 0.
    /// [`AllocError::TooLarge`] applies only above the capacity.
    ///
    /// ```
    /// # use kvmem::offset::OffsetAllocator;
    /// let space = OffsetAllocator::new(100)?;
    /// let parts: Vec<_> = (0..10).map(|_| space.allocate(10).unwrap()).collect();
    /// // Every other one dies: 50 bytes are free, none of them next to each other.
    /// let rest: Vec<_> = parts.into_iter().step_by(2).collect();
    /// assert!(space.allocate(30).is_err());
    /// let scattered = space.allocate_scattered(30, 3)?;
    /// assert_eq!(scattered.iter().map(|part| part.len()).sum::<u64>(), 30);
    /// # drop(rest);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_scattered(
        &self,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<Allocation>, AllocError> {
        if total == 0 {
            return Err(AllocError::ZeroSize);
        }
        if max_ranges == 0 {
            return Err(AllocError::NoRanges { requested: total });
        }
        let pieces = self.core.with(|state| state.heap.allocate_scattered(total, max_ranges))?;
        Ok(self.wrap_all(pieces))
    }

    /// Frees many allocations under one lock. Ranges that follow each other in `run` and in the
    /// space are coalesced first. Allocations of other spaces are freed there. O(n).
    pub fn free_batch(&self, run: impl IntoIterator<Item = Allocation>) {
        let (own, others): (Vec<_>, Vec<_>) =
            run.into_iter().partition(|allocation| allocation.core_index() == self.owner.index);
        let placed_ranges: Vec<Placed> = own
            .into_iter()
            .map(|allocation| {
                let placed = allocation.placed();
                allocation.forget();
                placed
            })
            .collect();
        self.core.with(|state| state.heap.free_batch(&placed_ranges));
        drop(others);
    }

    /// Moves the end of the space up to `new_capacity`. O(1).
    ///
    /// # Errors
    /// [`SpaceError::Capacity`] above 2^63, [`SpaceError::WrongDirection`] below the capacity,
    /// [`SpaceError::TooManyRanges`] at the limit of ranges.
    pub fn grow_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        check_capacity(new_capacity)?;
        self.core.resize(|heap| heap.grow(new_capacity))
    }

    /// Moves the end of the space down to `new_capacity`, if nothing in use lies behind it. O(1);
    /// with a boundary O(free segments removed).
    ///
    /// # Errors
    /// [`SpaceError::InUse`] with the end of the last allocation, [`SpaceError::Capacity`] for 0,
    /// [`SpaceError::WrongDirection`] above the capacity.
    pub fn shrink_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        check_capacity(new_capacity)?;
        self.core.resize(|heap| heap.shrink_to(new_capacity))
    }

    /// Returns the length of the space in bytes, without the lock. O(1).
    pub fn capacity(&self) -> u64 {
        self.core.capacity()
    }

    /// Returns the boundary that no allocation crosses, in bytes.
    pub fn boundary(&self) -> Option<u64> {
        self.owner.boundary
    }

    /// Returns an upper bound of the largest free range, in bytes, without the lock. O(1).
    ///
    /// The bound is exact unless the coalescing of freed ranges is deferred; then it allows for
    /// what they may coalesce with. Any request that does not reuse exactly that range, and any
    /// report, coalesces them.
    #[inline]
    pub fn largest_free_hint(&self) -> u64 {
        self.core.largest_free_hint()
    }

    /// Returns the address of the number that [`largest_free_hint`](Self::largest_free_hint) loads.
    /// It stays mapped as long as the allocator. Other threads write it: load it atomically.
    #[cfg(not(loom))]
    #[doc(hidden)]
    #[must_use]
    pub fn largest_free_address(&self) -> *const u64 {
        self.core.largest_free_address()
    }

    /// Returns the figures of the space. O(1).
    pub fn metrics(&self) -> Metrics {
        self.core.with(|state| {
            let mut metrics = state.heap.metrics();
            metrics.metadata_bytes += state.generations.bytes() as u64;
            metrics
        })
    }

    /// Returns a report for every non-empty bin, by ascending size. O(free ranges).
    pub fn bins(&self) -> Vec<BinReport> {
        self.core.with(|state| state.heap.bin_reports())
    }

    /// Returns the whole space in address order: a range for every allocation, and free ranges
    /// coalesced. O(ranges).
    pub fn map(&self) -> Vec<MapRange> {
        self.core.with(|state| state.heap.map())
    }

    /// Checks the metadata against its numbered invariants. O(ranges).
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.core.check()
    }
}

/// The raw interface: allocations identified by plain data, for FFI.
impl OffsetAllocator {
    /// Allocates `size` bytes, as [`allocate`](Self::allocate) does, until
    /// [`free_raw`](Self::free_raw) or the end of the process. O(1).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.core.allocate_and(size, |state, placed| live_handles(state, placed, size))
    }

    /// Allocates `size` bytes at a multiple of `align`, as
    /// [`allocate_aligned`](Self::allocate_aligned) does, until [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// Those of [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        let placed = self.place_aligned(size, align)?;
        Ok(self.core.with(|state| live_handles(state, placed, size)))
    }

    /// Frees a raw allocation; returns its size in bytes. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`] if the handle belongs to another allocator, [`RawError::Stale`] if it
    /// identifies no live allocation. Nothing changes then.
    ///
    /// ```
    /// use kvmem::offset::{OffsetAllocator, RawError};
    ///
    /// let space = OffsetAllocator::new(1 << 20)?;
    /// let a = space.allocate_raw(4096)?;
    /// assert_eq!(space.free_raw(a.handle), Ok(4096));
    /// assert!(matches!(space.free_raw(a.handle), Err(RawError::Stale { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn free_raw(&self, handle: RawHandle) -> Result<u64, RawError> {
        self.revoke_raw(handle, |state, placed, size| {
            state.heap.free(placed.node, placed.offset, size);
            size
        })
    }

    /// Returns the bytes of a raw allocation. O(1).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<Range<u64>, RawError> {
        self.with_raw(handle, |_, _, range| Ok(range))
    }

    /// Returns the raw allocation that is alive at a slot, the middle number of its handle, for
    /// programs that stored nothing else. O(1).
    #[must_use]
    pub fn raw_at(&self, slot: u32) -> Option<RawAllocation> {
        self.core.with(|state| {
            state
                .generations
                .generation_of(slot)
                .map(|generation| raw_allocation(state, slot, generation))
        })
    }

    /// Returns all raw allocations that are alive, in the order of their offsets. O(n log n) for
    /// the most allocations that were ever alive at once; the lock is held for O(n).
    ///
    /// ```
    /// # use kvmem::offset::OffsetAllocator;
    /// let space = OffsetAllocator::new(1 << 20)?;
    /// let (a, b) = (space.allocate_raw(100)?, space.allocate_raw(200)?);
    /// assert_eq!(space.raw_allocations(), [a, b]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn raw_allocations(&self) -> Vec<RawAllocation> {
        let mut all: Vec<RawAllocation> = self.core.with(|state| {
            state
                .generations
                .iter()
                .map(|(slot, generation)| raw_allocation(state, slot, generation))
                .collect()
        });
        all.sort_unstable_by_key(|one| one.offset);
        all
    }

    /// Shortens a raw allocation as [`Allocation::shrink`] does; the handle stays valid.
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw), and [`RawError::Failed`] with the error of
    /// [`Allocation::shrink`].
    pub fn shrink_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_raw(handle, |state, placed, _| {
            resize_down(&mut state.heap, placed, new_size)?;
            state.generations.resize(placed.node, short_size(new_size));
            Ok(())
        })
    }

    /// Lengthens a raw allocation as [`Allocation::extend`] does; the handle stays valid.
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw), and [`RawError::Failed`] with the error of
    /// [`Allocation::extend`].
    pub fn extend_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_raw(handle, |state, placed, _| {
            resize_up(&mut state.heap, placed, new_size)?;
            state.generations.resize(placed.node, short_size(new_size));
            Ok(())
        })
    }

    /// Turns a raw allocation into an RAII one; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Allocation, RawError> {
        self.revoke_raw(handle, |_, placed, size| self.wrap(placed, size))
    }

    /// Revokes the generation of a valid handle, and runs with its allocation.
    #[inline(always)]
    fn revoke_raw<R>(
        &self,
        handle: RawHandle,
        run: impl FnOnce(&mut SpaceState, Placed, u64) -> R,
    ) -> Result<R, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.with(|state| {
            let size = known_size(state.generations.take(slot, generation)?);
            let placed = Placed { node: slot, offset: state.heap.offset_of(slot) };
            let size = size.unwrap_or_else(|| state.heap.size_of(placed));
            Ok(run(state, placed, size))
        })
    }

    /// Checks that a handle belongs to this allocator.
    #[inline(always)]
    fn own(&self, handle: RawHandle) -> Result<(), RawError> {
        let (allocator, handle_of) = (self.owner.id, handle.allocator);
        if handle_of == allocator {
            Ok(())
        } else {
            Err(RawError::Foreign { allocator, handle_of })
        }
    }

    /// Runs `use_it` on a valid handle's allocation.
    fn with_raw<R>(
        &self,
        handle: RawHandle,
        use_it: impl FnOnce(&mut SpaceState, Placed, Range<u64>) -> Result<R, RawError>,
    ) -> Result<R, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.with(|state| {
            state.generations.verify(slot, generation)?;
            let range = state.heap.range_of(slot);
            use_it(state, Placed { node: slot, offset: range.start }, range)
        })
    }
}

/// Returns the allocation of a slot with a live handle.
fn raw_allocation(state: &SpaceState, slot: u32, generation: u32) -> RawAllocation {
    let range = state.heap.range_of(slot);
    let handle = RawHandle { allocator: state.id, slot, generation };
    RawAllocation { handle, offset: range.start, size: range.end - range.start }
}

#[inline(always)]
fn live_handles(state: &mut SpaceState, placed: Placed, size: u64) -> RawAllocation {
    let generation = state.generations.issue(placed.node, short_size(size));
    let handle = RawHandle { allocator: state.id, slot: placed.node, generation };
    RawAllocation { handle, offset: placed.offset, size }
}

impl fmt::Debug for OffsetAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffsetAllocator")
            .field("id", &self.owner.id)
            .field("boundary", &self.owner.boundary)
            .field("metrics", &self.metrics())
            .finish()
    }
}
