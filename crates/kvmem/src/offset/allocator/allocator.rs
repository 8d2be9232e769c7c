//! *OffsetAllocator*: the shared interface of a space.

use std::fmt;
use std::sync::Arc;

use super::allocation::Allocation;
use super::registry;
use super::space_core::SpaceCore;
use crate::offset::error::{AllocError, CheckError, SpaceError};
use crate::offset::heap::{BinReport, Heap, MapRange, Metrics, Placed, SizedRange};

/// Upper bound of the capacity: 2^63 bytes.
const CAPACITY_MAX: u64 = 1 << 63;

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
/// One lock guards the metadata. Threads that allocate at the same time queue for it, or have its
/// holder allocate for them. If they contend for it all the time, the space is cut into
/// [shards](crate::offset#shards) with a lock each.
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
    pub(super) core: &'static SpaceCore,
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

/// Checks the length of a space.
pub(super) fn check_capacity(requested: u64) -> Result<(), SpaceError> {
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
    /// Creates the allocator of an empty space.
    pub(super) fn of_heap(heap: Heap, boundary: Option<u64>, shards: Option<u32>) -> Self {
        let (index, id) = registry::acquire_slot();
        let core = registry::core(index);
        core.open(id, heap, shards);
        OffsetAllocator { core, owner: Arc::new(CoreOwner { index, id, boundary }) }
    }

    /// Cuts the space into up to `shards` shards, as lasting contention does, if it is not cut.
    /// O(ranges).
    #[doc(hidden)]
    pub fn cut(&self, shards: u32) {
        self.core.cut_now(shards);
    }

    /// Returns the number of [shards](crate::offset#shards): 1 until threads contend for the lock,
    /// if the [builder](crate::offset::OffsetAllocatorBuilder::shards) does not fix it.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.core.shard_count()
    }

    /// Returns the number of its core.
    pub(crate) fn core_index(&self) -> u32 {
        self.owner.index
    }

    /// Returns its identity, which is never reused in this process.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.owner.id
    }

    pub(super) fn wrap(&self, placed: Placed, size: u64) -> Allocation {
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

    pub(super) fn place_aligned(&self, size: u64, align: u64) -> Result<Placed, AllocError> {
        check_align(align)?;
        self.core.serve_with(size, |state| {
            let placed = state.heap.allocate_aligned(size, align);
            let placed = placed.ok_or_else(|| state.heap.allocation_error(size))?;
            Ok(state.tagged(placed))
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
        Ok(self.wrap_all(self.core.allocate_batch(size, n)?))
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
        Ok(self.wrap_all(self.core.allocate_scattered(total, max_ranges)?))
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
        self.core.free_batch(&placed_ranges);
        drop(others);
    }

    /// Moves the end of the space up to `new_capacity`. O(1).
    ///
    /// # Errors
    /// [`SpaceError::Capacity`] above 2^63, [`SpaceError::WrongDirection`] below the capacity,
    /// [`SpaceError::TooManyRanges`] at the limit of ranges.
    pub fn grow_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        check_capacity(new_capacity)?;
        self.core.grow(new_capacity)
    }

    /// Moves the end of the space down to `new_capacity`, if nothing in use lies behind it. O(1);
    /// with a boundary O(free segments removed).
    ///
    /// # Errors
    /// [`SpaceError::InUse`] with the end of the last allocation, [`SpaceError::Capacity`] for 0,
    /// [`SpaceError::WrongDirection`] above the capacity.
    pub fn shrink_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        check_capacity(new_capacity)?;
        self.core.shrink_to(new_capacity)
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
    /// report, coalesces them. While threads contend for the lock of the space, and for up to 64
    /// operations after that, it is the length of the longest range that could ever be allocated.
    #[inline]
    pub fn largest_free_hint(&self) -> u64 {
        self.core.largest_free_hint()
    }

    /// Returns the address of the number that [`largest_free_hint`](Self::largest_free_hint) loads.
    /// It stays mapped as long as the allocator. Other threads write it: load it atomically.
    #[doc(hidden)]
    #[must_use]
    pub fn largest_free_address(&self) -> *const u64 {
        self.core.largest_free_address()
    }

    /// Returns the figures of the space. O(1).
    pub fn metrics(&self) -> Metrics {
        self.core.metrics()
    }

    /// Returns a report for every non-empty bin, by ascending size. O(free ranges).
    pub fn bins(&self) -> Vec<BinReport> {
        self.core.bins()
    }

    /// Returns the whole space in address order: a range for every allocation, and one for each
    /// free range that [`metrics`](Self::metrics) and [`bins`](Self::bins) count. O(ranges).
    pub fn map(&self) -> Vec<MapRange> {
        self.core.map()
    }

    /// Checks the metadata against its numbered invariants. O(ranges).
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.core.check()
    }
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
