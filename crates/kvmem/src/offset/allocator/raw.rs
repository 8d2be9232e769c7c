//! *Raw interface*: allocations identified by plain data, for C and Python.

use std::ops::Range;

use super::allocation::{Allocation, resize_down, resize_up};
use super::allocator::OffsetAllocator;
use super::range::short_size;
use super::raw_handle::{RawAllocation, RawHandle};
use super::space_core::SpaceState;
use crate::offset::error::{AllocError, RawError};
use crate::offset::heap::Placed;

/// The raw interface: allocations identified by plain data, for FFI.
impl OffsetAllocator {
    /// Allocates `size` bytes, as [`allocate`](Self::allocate) does, until
    /// [`free_raw`](Self::free_raw) or the end of the process. O(1).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.core.allocate_and(size, |state, placed| state.issue(placed, size))
    }

    /// Allocates `size` bytes at a multiple of `align`, as
    /// [`allocate_aligned`](Self::allocate_aligned) does, until [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// Those of [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        let placed = self.place_aligned(size, align)?;
        Ok(self.core.with_at(placed, |state, placed| state.issue(placed, size)))
    }

    /// Allocates exactly `range`, until [`free_raw`](Self::free_raw), for a program that restores a
    /// space from its own record of what was in use. A record in address order is restored in O(1)
    /// for each range. O(1 + ranges behind it).
    ///
    /// # Errors
    /// [`AllocError::NotFree`] if a byte of the range is used or outside of the space, or if the
    /// range crosses a boundary; [`AllocError::ZeroSize`] if it is empty;
    /// [`AllocError::TooManyRanges`].
    ///
    /// ```
    /// use kvmem::offset::OffsetAllocator;
    ///
    /// let space = OffsetAllocator::new(1 << 20)?;
    /// let kept = space.allocate_raw_at(4096..12288)?;
    /// assert_eq!((kept.offset, kept.size), (4096, 8192));
    /// assert!(space.allocate_raw_at(8192..16384).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_raw_at(&self, range: Range<u64>) -> Result<RawAllocation, AllocError> {
        let Range { start, end } = range;
        if start >= end {
            return Err(AllocError::ZeroSize);
        }
        self.core.allocate_raw_at(start..end)
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
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.free_raw(self.id(), slot, generation)
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
        let look = |state: &mut SpaceState, own: u32| match state.generations.generation_of(own) {
            Some(generation) => Ok(raw_allocation(state, own, generation)),
            None => Err(RawError::Stale { slot, generation: 0 }),
        };
        self.core.with_slot((slot, 0), look).ok()
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
        let mut all: Vec<RawAllocation> = self.core.with_all(|states| {
            let of = |state: &&mut SpaceState| {
                let handles = state.generations.iter();
                handles.map(|(own, at)| raw_allocation(state, own, at)).collect::<Vec<_>>()
            };
            states.iter().flat_map(of).collect()
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
            state.freed_any();
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
        let end = |_: &mut SpaceState, _, range: Range<u64>| Ok(range.end);
        let extend = || {
            self.with_raw(handle, |state, placed, _| {
                resize_up(&mut state.heap, placed, new_size)?;
                state.generations.resize(placed.node, short_size(new_size));
                Ok(())
            })
        };
        self.core.extend_at(|| self.with_raw(handle, end).ok(), extend)
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
        run: impl Fn(&mut SpaceState, Placed, u64) -> R,
    ) -> Result<R, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.with_slot((slot, generation), |state, own| {
            let (placed, size) = state.revoke_in_shard(own, generation)?;
            let placed = state.tagged(placed);
            Ok(run(state, placed, size))
        })
    }

    /// Checks that a handle belongs to this allocator.
    #[inline(always)]
    fn own(&self, handle: RawHandle) -> Result<(), RawError> {
        let (allocator, handle_of) = (self.id(), handle.allocator);
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
        use_it: impl Fn(&mut SpaceState, Placed, Range<u64>) -> Result<R, RawError>,
    ) -> Result<R, RawError> {
        let RawHandle { slot, generation, .. } = handle;
        self.own(handle)?;
        self.core.with_slot((slot, generation), |state, own| {
            state.generations.verify(own, generation)?;
            let range = state.heap.range_of(own);
            use_it(state, Placed { node: own, offset: range.start }, range)
        })
    }
}

/// Returns the allocation of a slot with a live handle.
fn raw_allocation(state: &SpaceState, slot: u32, generation: u32) -> RawAllocation {
    let range = state.heap.range_of(slot);
    let handle = RawHandle { allocator: state.id, slot: state.slot_of_handle(slot), generation };
    RawAllocation { handle, offset: range.start, size: range.end - range.start }
}
