//! *OffsetAllocator*: the shared face of a space.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::allocation::{Allocation, resize_down, resize_up};
use super::core::{Books, Core, refusal};
use super::error::{AllocError, CheckError, RawError, SpaceError};
use super::heap::{Grant, Heap};
use super::placement::Placement;
use super::range::{known_size, short_size};
use super::raw::{RawAllocation, RawHandle};
use super::registry;
use super::report::{BinReport, MapRange, Metrics};
use super::scattered::Piece;

/// The longest space: 2^63 bytes.
const CAPACITY_MAX: u64 = 1 << 63;

/// The least that [`OffsetAllocatorBuilder::max_ranges`] takes: a few changes must be possible.
const LEAST_RANGES: u32 = 16;

/// Hands out ranges of an abstract space `[0, capacity)`; never touches the bytes.
///
/// `Send + Sync`; clones share one space. Allocations free themselves when dropped and may outlive
/// the allocator.
///
/// # Time complexity
///
/// Allocate and free are O(1). See each method for the exceptions.
///
/// # Drawbacks
///
/// One lock guards the books; threads that allocate at the same time queue for it.
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
    core: &'static Core,
    owner: Arc<Owner>,
}

/// Held by every clone; the last one closes the core.
struct Owner {
    index: u32,
    id: u64,
    boundary: Option<u64>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if registry::core(self.index).close() {
            registry::discharge(self.index);
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
    /// No allocation will straddle a multiple of `bytes`, nor be longer. Any length is good, not
    /// only powers of two.
    pub fn boundary(mut self, bytes: u64) -> Self {
        self.boundary = Some(bytes);
        self
    }

    /// How to choose among the holes that fit.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// At most so many ranges, used and free together, will be on the books, which so take at most
    /// about 50 bytes for each: for those who must bound memory. When they are full, requests
    /// that would cut a free range in two get [`AllocError::TooManyRanges`]; exact fits and frees
    /// still succeed. Without it the limit is about 2^32.
    pub fn max_ranges(mut self, ranges: u32) -> Self {
        self.max_ranges = ranges;
        self
    }

    /// Makes the space. O(1), about 40 KiB whatever the capacity.
    ///
    /// # Errors
    /// [`SpaceError::Capacity`] outside of 1..=2^63, [`SpaceError::ZeroBoundary`],
    /// [`SpaceError::MaxRanges`] below 16.
    pub fn build(self) -> Result<OffsetAllocator, SpaceError> {
        let OffsetAllocatorBuilder { capacity, boundary, placement, max_ranges } = self;
        check_capacity(capacity)?;
        if boundary == Some(0) {
            return Err(SpaceError::ZeroBoundary);
        }
        if max_ranges < LEAST_RANGES {
            return Err(SpaceError::MaxRanges { requested: max_ranges, least: LEAST_RANGES });
        }
        let heap = Heap::new(capacity, boundary, placement, max_ranges);
        let (index, id) = registry::enlist();
        let core = registry::core(index);
        core.open(id, heap);
        Ok(OffsetAllocator { core, owner: Arc::new(Owner { index, id, boundary }) })
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
    /// A space of `capacity` bytes, 1..=2^63, without boundary, placed by [`Placement::Renewal`].
    ///
    /// # Errors
    /// See [`OffsetAllocatorBuilder::build`].
    pub fn new(capacity: u64) -> Result<Self, SpaceError> {
        Self::builder(capacity).build()
    }

    /// A space of `capacity` bytes with settings of its own.
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

    /// The number of its core.
    pub(super) fn core_index(&self) -> u32 {
        self.owner.index
    }

    /// Its identity, never used again in this process.
    pub(crate) fn id(&self) -> u64 {
        self.owner.id
    }

    fn wrap(&self, grant: Grant, size: u64) -> Allocation {
        Allocation::new(self.owner.index, grant, size)
    }

    fn wrap_all(&self, pieces: Vec<Piece>) -> Vec<Allocation> {
        pieces.into_iter().map(|piece| self.wrap(piece.grant, piece.size)).collect()
    }

    /// Grants `size` bytes. O(1). A request above [`largest_free_hint`](Self::largest_free_hint) is
    /// refused without the lock.
    ///
    /// Until something is freed for the first time, ranges follow each other from offset 0 up,
    /// without gaps.
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`], [`AllocError::TooLarge`], [`AllocError::OutOfSpace`],
    /// [`AllocError::TooManyRanges`].
    #[inline(always)]
    pub fn allocate(&self, size: u64) -> Result<Allocation, AllocError> {
        Ok(self.wrap(self.core.allocate(size)?, size))
    }

    /// Why a request of `size` bytes fails that is longer than `longest`, which
    /// [`largest_free_hint`](Self::largest_free_hint) returned just now, or 0. For faces that
    /// compare the two before they do anything else. O(1), without the lock.
    #[inline]
    #[must_use]
    pub fn fails_early(&self, size: u64, longest: u64) -> AllocError {
        self.core.refuse_early(size, longest)
    }

    /// Grants `size` bytes that begin at a multiple of `align`, a power of two. What lies before
    /// stays free.
    ///
    /// O(1). While a free range a little longer than `size + align − 1` is there (1/32 is enough),
    /// the request succeeds. Otherwise up to 384 free ranges are looked at, the longest first;
    /// an aligned start behind those is overlooked.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`AllocError::BadAlign`].
    pub fn allocate_aligned(&self, size: u64, align: u64) -> Result<Allocation, AllocError> {
        Ok(self.wrap(self.grant_aligned(size, align)?, size))
    }

    fn grant_aligned(&self, size: u64, align: u64) -> Result<Grant, AllocError> {
        check_align(align)?;
        self.core.admit(size)?;
        self.core.with(|books| {
            books.heap.allocate_aligned(size, align).ok_or_else(|| refusal(&mut books.heap, size))
        })
    }

    /// Grants `n` ranges of `size` bytes each under one lock, or none. O(n).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate); [`AllocError::OutOfSpace`] names the bytes of all ranges
    /// together.
    pub fn allocate_batch(&self, size: u64, n: usize) -> Result<Vec<Allocation>, AllocError> {
        if n == 0 {
            return Ok(Vec::new());
        }
        self.core.admit(size).map_err(|error| error.of_batch(size, n))?;
        let pieces = self.core.with(|books| books.heap.allocate_batch(size, n))?;
        Ok(self.wrap_all(pieces))
    }

    /// Grants `total` bytes in at most `max_ranges` ranges whose sizes add up to `total`, or
    /// nothing: for consumers that gather, such as RDMA with several scatter entries. One range
    /// if there is one that fits.
    ///
    /// O(`max_ranges`).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`AllocError::NoRanges`]. Only more than the capacity
    /// is too large.
    ///
    /// ```
    /// # use kvmem::offset::OffsetAllocator;
    /// let space = OffsetAllocator::new(100)?;
    /// let parts: Vec<_> = (0..10).map(|_| space.allocate(10).unwrap()).collect();
    /// // Every other one dies: 50 bytes are free, none of them next to each other.
    /// let rest: Vec<_> = parts.into_iter().step_by(2).collect();
    /// assert!(space.allocate(30).is_err());
    /// let scattered = space.allocate_scattered(30, 3)?;
    /// assert_eq!(scattered.iter().map(|part| part.size()).sum::<u64>(), 30);
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
        let pieces = self.core.with(|books| books.heap.allocate_scattered(total, max_ranges))?;
        Ok(self.wrap_all(pieces))
    }

    /// Frees many allocations under one lock; those that follow each other in `run` and in the
    /// space are joined first. Allocations of other spaces are freed there. O(n).
    pub fn free_batch(&self, run: impl IntoIterator<Item = Allocation>) {
        let (own, others): (Vec<_>, Vec<_>) =
            run.into_iter().partition(|allocation| allocation.core_index() == self.owner.index);
        let grants: Vec<Grant> = own
            .into_iter()
            .map(|allocation| {
                let grant = allocation.grant();
                allocation.forget();
                grant
            })
            .collect();
        self.core.with(|books| books.heap.free_batch(&grants));
        drop(others);
    }

    /// Moves the end of the space up to `new_capacity`. O(1).
    ///
    /// # Errors
    /// [`SpaceError::Capacity`], [`SpaceError::WrongDirection`], [`SpaceError::TooManyRanges`].
    pub fn grow(&self, new_capacity: u64) -> Result<(), SpaceError> {
        check_capacity(new_capacity)?;
        self.core.resize(|heap| heap.grow(new_capacity))
    }

    /// Moves the end of the space down to `new_capacity`, if nothing in use lies behind it. O(1),
    /// with a boundary O(free segments given up).
    ///
    /// # Errors
    /// [`SpaceError::InUse`] with the end of the last allocation, [`SpaceError::Capacity`],
    /// [`SpaceError::WrongDirection`].
    pub fn shrink_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        check_capacity(new_capacity)?;
        self.core.resize(|heap| heap.shrink_to(new_capacity))
    }

    /// Length of the space in bytes, without the lock. O(1).
    pub fn capacity(&self) -> u64 {
        self.core.capacity()
    }

    /// The boundary that no allocation straddles, in bytes.
    pub fn boundary(&self) -> Option<u64> {
        self.owner.boundary
    }

    /// An upper bound of the largest free range, in bytes, without the lock. O(1).
    ///
    /// It is exact unless freed ranges are pending, which may turn out to join others: until
    /// something settles them (any request that does not take just that range back, or any
    /// report), the bound allows for it.
    #[inline]
    pub fn largest_free_hint(&self) -> u64 {
        self.core.largest_free_hint()
    }

    /// Figures of the space. O(1).
    pub fn metrics(&self) -> Metrics {
        self.core.with(|books| {
            let mut metrics = books.heap.metrics();
            metrics.metadata_bytes += books.seals.bytes() as u64;
            metrics
        })
    }

    /// The free ranges by size: a report for every bin that holds any, ascending. O(free ranges).
    pub fn bins(&self) -> Vec<BinReport> {
        self.core.with(|books| books.heap.bin_reports())
    }

    /// The whole space in address order: a range for every allocation, and free ranges joined.
    /// O(ranges).
    pub fn map(&self) -> Vec<MapRange> {
        self.core.with(|books| books.heap.map())
    }

    /// Checks the books against their numbered invariants. O(ranges).
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.core.check()
    }
}

/// The raw face: allocations named by plain data, for FFI.
impl OffsetAllocator {
    /// As [`allocate`](Self::allocate), but the allocation lives until
    /// [`free_raw`](Self::free_raw), or to the end of the process. O(1).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.core.allocate_and(size, |books, grant| sealed(books, grant, size))
    }

    /// As [`allocate_aligned`](Self::allocate_aligned), raw.
    ///
    /// # Errors
    /// As [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        let grant = self.grant_aligned(size, align)?;
        Ok(self.core.with(|books| sealed(books, grant, size)))
    }

    /// Frees a raw allocation; returns its size in bytes. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`], [`RawError::Stale`]; nothing is changed then.
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
        self.unseal(handle, |books, grant, size| {
            books.heap.free(grant.node, grant.offset, size);
            size
        })
    }

    /// Where a raw allocation lies. O(1).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<Range<u64>, RawError> {
        self.with_raw(handle, |_, _, range| Ok(range))
    }

    /// The raw allocation that is alive at a slot, the middle number of its handle: for programs
    /// that have kept no more of it. O(1).
    #[must_use]
    pub fn raw_at(&self, slot: u32) -> Option<RawAllocation> {
        self.core
            .with(|books| books.seals.of(slot).map(|generation| named(books, slot, generation)))
    }

    /// All raw allocations that are alive, in the order of their offsets. O(n log n) for the most
    /// allocations that ever were alive at once; the lock is held for O(n).
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
        let mut all: Vec<RawAllocation> = self.core.with(|books| {
            books.seals.iter().map(|(slot, generation)| named(books, slot, generation)).collect()
        });
        all.sort_unstable_by_key(|one| one.offset);
        all
    }

    /// As [`Allocation::shrink`], raw; the handle stays good.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), and [`RawError::Refused`] with what [`Allocation::shrink`]
    /// says.
    pub fn shrink_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_raw(handle, |books, grant, _| {
            resize_down(&mut books.heap, grant, new_size)?;
            books.seals.resize(grant.node, short_size(new_size));
            Ok(())
        })
    }

    /// As [`Allocation::extend`], raw; the handle stays good.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), and [`RawError::Refused`] with what [`Allocation::extend`]
    /// says.
    pub fn extend_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.with_raw(handle, |books, grant, _| {
            resize_up(&mut books.heap, grant, new_size)?;
            books.seals.resize(grant.node, short_size(new_size));
            Ok(())
        })
    }

    /// Turns a raw allocation into an RAII one; the handle is stale afterwards. O(1).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Allocation, RawError> {
        self.unseal(handle, |_, grant, size| self.wrap(grant, size))
    }

    /// Breaks the seal of a good handle, and runs with its allocation.
    #[inline(always)]
    fn unseal<R>(
        &self,
        handle: RawHandle,
        run: impl FnOnce(&mut Books, Grant, u64) -> R,
    ) -> Result<R, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.with(|books| {
            let size = known_size(books.seals.take(slot, generation)?);
            let grant = Grant { node: slot, offset: books.heap.offset_of(slot) };
            let size = size.unwrap_or_else(|| books.heap.size_of(grant));
            Ok(run(books, grant, size))
        })
    }

    /// Whether a handle is of this allocator.
    #[inline(always)]
    fn own(&self, handle: RawHandle) -> Result<(), RawError> {
        let (allocator, handle_of) = (self.owner.id, handle.allocator);
        if handle_of == allocator {
            Ok(())
        } else {
            Err(RawError::Foreign { allocator, handle_of })
        }
    }

    /// Runs `use_it` on a good handle's allocation.
    fn with_raw<R>(
        &self,
        handle: RawHandle,
        use_it: impl FnOnce(&mut Books, Grant, Range<u64>) -> Result<R, RawError>,
    ) -> Result<R, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.with(|books| {
            books.seals.verify(slot, generation)?;
            let range = books.heap.range_of(slot);
            use_it(books, Grant { node: slot, offset: range.start }, range)
        })
    }
}

/// The allocation of a slot that has this seal.
fn named(books: &Books, slot: u32, generation: u32) -> RawAllocation {
    let range = books.heap.range_of(slot);
    let handle = RawHandle { allocator: books.id, slot, generation };
    RawAllocation { handle, offset: range.start, size: range.end - range.start }
}

#[inline(always)]
fn sealed(books: &mut Books, grant: Grant, size: u64) -> RawAllocation {
    let generation = books.seals.seal(grant.node, short_size(size));
    let handle = RawHandle { allocator: books.id, slot: grant.node, generation };
    RawAllocation { handle, offset: grant.offset, size }
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
