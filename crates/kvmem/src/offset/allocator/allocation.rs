//! *Allocation*: one allocated range, freed when dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ops;

use super::range::{LONG, Range, known_size, short_size};
use super::raw_handle::RawHandle;
use super::registry;
use super::space_core::{SpaceCore, SpaceState};
use crate::offset::error::AllocError;
use crate::offset::heap::{Heap, Placed};

/// An allocated range `[offset, offset + size)` of a space. Dropping it frees the range.
///
/// 20 bytes, move-only, `Send` and `Sync`. It may outlive the
/// [`OffsetAllocator`](super::OffsetAllocator) that created it.
///
/// ```
/// use kvmem::offset::OffsetAllocator;
///
/// let space = OffsetAllocator::new(1000)?;
/// let a = space.allocate(600)?;
/// assert_eq!((a.len(), a.range()), (600, a.offset()..a.offset() + 600));
/// assert!(space.allocate(600).is_err());
/// drop(a);
/// assert!(space.allocate(600).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping an allocation frees it"]
#[repr(C, packed(4))]
pub struct Allocation {
    /// Two words, which are passed in registers. Packed, so the handle takes 20 bytes and not 24.
    range: Range,
    /// Number of the core, plus one: `Option<Allocation>` is no larger.
    core: NonZeroU32,
}

impl Allocation {
    #[inline(always)]
    pub(super) fn new(core: u32, placed: Placed, size: u64) -> Self {
        Self::of_range(core, Range::new(placed.offset, short_size(size), placed.node))
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
    fn core(&self) -> &'static SpaceCore {
        registry::core(self.core_index())
    }

    #[inline(always)]
    pub(super) fn placed(&self) -> Placed {
        self.as_range().placed()
    }

    /// Returns the range. Its length may be [`LONG`]; the metadata knows it then.
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

    /// Returns where the range begins, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.as_range().offset()
    }

    /// Returns the length of the range in bytes: exactly the requested size.
    ///
    /// O(1); from 4 GiB − 1 B up it is read from the metadata under the lock.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // An allocation is never empty.
    pub fn len(&self) -> u64 {
        match self.as_range().size() {
            LONG => self.core().with_at(self.placed(), |state, own| state.heap.size_of(own)),
            size => u64::from(size),
        }
    }

    /// Returns `offset()..offset() + size()`.
    pub fn range(&self) -> ops::Range<u64> {
        self.offset()..self.offset() + self.len()
    }

    /// Frees the tail: the allocation is `new_size` bytes afterwards, and its offset stays. O(1).
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`] for 0; [`AllocError::OutOfBounds`] if the allocation is shorter
    /// than `new_size`; [`AllocError::TooManyRanges`] at the limit of ranges. Nothing changes then.
    pub fn shrink(&mut self, new_size: u64) -> Result<(), AllocError> {
        let placed = self.placed();
        self.core().with_at(placed, |state, own| {
            state.freed_any();
            resize_down(&mut state.heap, own, new_size)
        })?;
        self.set_size(new_size);
        Ok(())
    }

    /// Takes in free bytes that lie behind: the allocation is `new_size` bytes afterwards, and its
    /// offset stays. Nothing is moved. O(1).
    ///
    /// # Errors
    /// [`AllocError::CannotExtend`] if the range behind is in use, too short, or beyond a boundary;
    /// [`AllocError::TooLarge`] if no range of this space can be that long;
    /// [`AllocError::OutOfBounds`] if the allocation is longer than `new_size`. Nothing changes
    /// then.
    pub fn extend(&mut self, new_size: u64) -> Result<(), AllocError> {
        let placed = self.placed();
        let end = |state: &mut SpaceState, own: Placed| state.heap.range_of(own.node).end;
        self.core().extend_at(
            || Some(self.core().with_at(placed, end)),
            || self.core().with_at(placed, |state, own| resize_up(&mut state.heap, own, new_size)),
        )?;
        self.set_size(new_size);
        Ok(())
    }

    /// Frees the part `sub` of the range, in bytes of the space, and returns the rest before and
    /// behind it. O(1).
    ///
    /// # Errors
    /// [`AllocError::OutOfBounds`] if `sub` is empty or not within the allocation,
    /// [`AllocError::TooManyRanges`] at the limit of ranges. The error contains the unchanged
    /// allocation.
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
        let (placed, range) = (self.placed(), self.range());
        if sub.is_empty() || sub.start < range.start || sub.end > range.end {
            return Err((self, out_of_bounds(sub, range)));
        }
        let core = self.core();
        let freed = core.with_at(placed, |state, own| {
            state.freed_any();
            let freed = state.heap.free_part(own, range.end - range.start, sub.clone());
            let right = freed.ok_or(AllocError::TooManyRanges { ranges: state.heap.ranges() })?;
            Ok((right.map(|right| state.tagged(right)), state.over()))
        });
        match freed {
            Err(error) => Err((self, error)),
            Ok((right, over)) => {
                let index = self.forget();
                if sub == range && core.ended(over) {
                    registry::release_slot(index);
                }
                let left = (sub.start > range.start)
                    .then(|| Allocation::new(index, placed, sub.start - range.start));
                let right = right.map(|placed| Allocation::new(index, placed, range.end - sub.end));
                Ok((left, right))
            }
        }
    }

    /// Turns the allocation into a raw handle, which must be freed through
    /// [`OffsetAllocator::free_raw`](super::OffsetAllocator::free_raw). O(1).
    pub fn into_raw(self) -> RawHandle {
        let core = self.core();
        let (handle, over) = core.with_at(self.placed(), |state, own| {
            let raw = state.issue_short(own, self.as_range().size());
            (raw, state.over())
        });
        let index = self.forget();
        // If the allocator is gone, no call can free this one any more. If it was the last that
        // could be freed, the state is dropped.
        if core.ended(over) {
            registry::release_slot(index);
        }
        handle
    }
}

impl Drop for Allocation {
    #[inline]
    fn drop(&mut self) {
        if self.core().free(self.placed(), known_size(self.as_range().size())) {
            registry::release_slot(self.core_index());
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("offset", &self.offset())
            .field("size", &self.len())
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

/// Shortens an allocated range, for RAII and raw handles.
pub(super) fn resize_down(
    heap: &mut Heap,
    placed: Placed,
    new_size: u64,
) -> Result<(), AllocError> {
    let range = heap.range_of(placed.node);
    let size = range.end - range.start;
    if new_size == 0 {
        return Err(AllocError::ZeroSize);
    }
    if new_size > size {
        return Err(out_of_bounds(range.start..range.start.saturating_add(new_size), range));
    }
    heap.shrink(placed, size, new_size).ok_or(AllocError::TooManyRanges { ranges: heap.ranges() })
}

/// Lengthens an allocated range, for RAII and raw handles.
pub(super) fn resize_up(heap: &mut Heap, placed: Placed, new_size: u64) -> Result<(), AllocError> {
    let range = heap.range_of(placed.node);
    let size = range.end - range.start;
    if new_size < size {
        return Err(out_of_bounds(range.start..range.start + new_size, range));
    }
    let limit = heap.limit_of_space();
    if new_size > limit {
        return Err(AllocError::TooLarge { requested: new_size, limit });
    }
    heap.extend(placed, size, new_size)
        .map_err(|max| AllocError::CannotExtend { requested: new_size, max })
}
