//! *Allocation*: one granted range, freed when dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ops;

use super::core::Core;
use super::error::AllocError;
use super::heap::{Grant, Heap};
use super::range::{LONG, Range, known_size, short_size};
use super::raw::RawHandle;
use super::registry;

/// A granted range `[offset, offset + size)` of a space. Dropping it frees the range.
///
/// 20 bytes, move-only, `Send` and `Sync`. It may outlive the
/// [`OffsetAllocator`](super::OffsetAllocator) it came from.
///
/// ```
/// use kvmem::offset::OffsetAllocator;
///
/// let space = OffsetAllocator::new(1000)?;
/// let a = space.allocate(600)?;
/// assert_eq!((a.size(), a.range()), (600, a.offset()..a.offset() + 600));
/// assert!(space.allocate(600).is_err());
/// drop(a);
/// assert!(space.allocate(600).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping an allocation frees it"]
#[repr(C, packed(4))]
pub struct Allocation {
    /// Two words, which go from hand to hand in registers. Packed, so that the handle is 20 bytes
    /// and not 24.
    range: Range,
    /// Number of the core, plus one: `Option<Allocation>` is no larger.
    core: NonZeroU32,
}

impl Allocation {
    #[inline(always)]
    pub(super) fn new(core: u32, grant: Grant, size: u64) -> Self {
        Self::of_range(core, Range::new(grant.offset, short_size(size), grant.node))
    }

    #[inline(always)]
    pub(super) fn of_range(core: u32, range: Range) -> Self {
        Allocation { range, core: NonZeroU32::MIN.saturating_add(core) }
    }

    #[inline(always)]
    pub(crate) fn core_index(&self) -> u32 {
        self.core.get() - 1
    }

    #[inline(always)]
    fn core(&self) -> &'static Core {
        registry::core(self.core_index())
    }

    #[inline(always)]
    pub(super) fn grant(&self) -> Grant {
        self.as_range().grant()
    }

    /// The range, whose length the books may know better.
    #[inline(always)]
    pub(crate) fn as_range(&self) -> Range {
        self.range
    }

    /// Gives up the handle without freeing the range; returns the number of its core.
    pub(crate) fn forget(self) -> u32 {
        ManuallyDrop::new(self).core_index()
    }

    fn set_size(&mut self, size: u64) {
        let range = self.as_range();
        self.range = Range::new(range.offset(), short_size(size), range.node());
    }

    /// Where the range begins, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.as_range().offset()
    }

    /// Length of the range in bytes: exactly what was asked for.
    ///
    /// O(1); from 4 GiB − 1 B up it is read from the books under the lock.
    #[inline]
    pub fn size(&self) -> u64 {
        match self.as_range().size() {
            LONG => self.core().with(|books| books.heap.size_of(self.grant())),
            size => u64::from(size),
        }
    }

    /// `offset()..offset() + size()`.
    pub fn range(&self) -> ops::Range<u64> {
        self.offset()..self.offset() + self.size()
    }

    /// Gives back the tail: the allocation is `new_size` bytes afterwards and begins where it did.
    /// O(1).
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`]; [`AllocError::OutOfBounds`] if it is shorter than that already;
    /// [`AllocError::TooManyRanges`]. Nothing is changed then.
    pub fn shrink(&mut self, new_size: u64) -> Result<(), AllocError> {
        let grant = self.grant();
        self.core().with(|books| resize_down(&mut books.heap, grant, new_size))?;
        self.set_size(new_size);
        Ok(())
    }

    /// Takes in free bytes that lie behind: the allocation is `new_size` bytes afterwards and
    /// begins where it did. Nothing is moved. O(1).
    ///
    /// # Errors
    /// [`AllocError::Blocked`] if the range behind is in use, too short, or beyond a boundary;
    /// [`AllocError::TooLarge`] if no range of this space can be that long;
    /// [`AllocError::OutOfBounds`] if the allocation is longer than that already. Nothing is
    /// changed then.
    pub fn extend(&mut self, new_size: u64) -> Result<(), AllocError> {
        let grant = self.grant();
        self.core().with(|books| resize_up(&mut books.heap, grant, new_size))?;
        self.set_size(new_size);
        Ok(())
    }

    /// Frees the part `sub` of the range, in bytes of the space, and returns what is left before
    /// and behind it. O(1).
    ///
    /// # Errors
    /// [`AllocError::OutOfBounds`] if `sub` is empty or not within the allocation,
    /// [`AllocError::TooManyRanges`]; the allocation comes back unharmed.
    ///
    /// ```
    /// # use kvmem::offset::OffsetAllocator;
    /// let space = OffsetAllocator::new(100)?;
    /// let all = space.allocate(100)?;
    /// let (left, right) = all.free_range(40..60).map_err(|(_, error)| error)?;
    /// assert_eq!(left.unwrap().range(), 0..40);
    /// assert_eq!(right.unwrap().range(), 60..100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_range(
        self,
        sub: ops::Range<u64>,
    ) -> Result<(Option<Allocation>, Option<Allocation>), (Allocation, AllocError)> {
        let (grant, range) = (self.grant(), self.range());
        if sub.is_empty() || sub.start < range.start || sub.end > range.end {
            return Err((self, out_of_bounds(sub, range)));
        }
        let core = self.core();
        let freed = core.with(|books| {
            let heap = &mut books.heap;
            let freed = heap.free_part(grant, range.end - range.start, sub.clone());
            freed.ok_or(AllocError::TooManyRanges { ranges: heap.ranges() })
        });
        match freed {
            Err(error) => Err((self, error)),
            Ok(right) => {
                let index = self.forget();
                if sub == range && core.put_away() {
                    registry::discharge(index);
                }
                let left = (sub.start > range.start)
                    .then(|| Allocation::new(index, grant, sub.start - range.start));
                let right = right.map(|grant| Allocation::new(index, grant, range.end - sub.end));
                Ok((left, right))
            }
        }
    }

    /// Turns the allocation into a raw handle, which has to be freed through
    /// [`OffsetAllocator::free_raw`](super::OffsetAllocator::free_raw). O(1).
    pub fn into_raw(self) -> RawHandle {
        let core = self.core();
        let handle = core.with(|books| RawHandle {
            allocator: books.id,
            slot: self.as_range().node(),
            generation: books.seals.seal(self.as_range().node(), self.as_range().size()),
        });
        let index = self.forget();
        // If the allocator is gone, nobody can free it any more; if it was the last that could be
        // freed, the books go.
        if core.put_away() {
            registry::discharge(index);
        }
        handle
    }
}

impl Drop for Allocation {
    #[inline]
    fn drop(&mut self) {
        if self.core().free(self.grant(), known_size(self.as_range().size())) {
            registry::discharge(self.core_index());
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("offset", &self.offset())
            .field("size", &self.size())
            .finish()
    }
}

#[cold]
fn out_of_bounds(part: ops::Range<u64>, whole: ops::Range<u64>) -> AllocError {
    AllocError::OutOfBounds {
        start: part.start,
        end: part.end,
        allocation_start: whole.start,
        allocation_end: whole.end,
    }
}

/// Shortens a granted range; both faces use it.
pub(super) fn resize_down(heap: &mut Heap, grant: Grant, new_size: u64) -> Result<(), AllocError> {
    let range = heap.range_of(grant.node);
    let size = range.end - range.start;
    if new_size == 0 {
        return Err(AllocError::ZeroSize);
    }
    if new_size > size {
        return Err(out_of_bounds(range.start..range.start.saturating_add(new_size), range));
    }
    heap.shrink(grant, size, new_size).ok_or(AllocError::TooManyRanges { ranges: heap.ranges() })
}

/// Lengthens a granted range; both faces use it.
pub(super) fn resize_up(heap: &mut Heap, grant: Grant, new_size: u64) -> Result<(), AllocError> {
    let range = heap.range_of(grant.node);
    let size = range.end - range.start;
    if new_size < size {
        return Err(out_of_bounds(range.start..range.start + new_size, range));
    }
    if new_size > heap.limit() {
        return Err(AllocError::TooLarge { requested: new_size, limit: heap.limit() });
    }
    heap.extend(grant, size, new_size)
        .map_err(|most| AllocError::Blocked { requested: new_size, most })
}
