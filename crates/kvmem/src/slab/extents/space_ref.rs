//! *Space reference*: a cached space by number and identity, for faces of other languages.
//!
//! As [`SpaceRef`](crate::offset::SpaceRef) of the offset layer, for spaces with magazines: a
//! handle of an object of another language is safe after the space is gone, and counts no
//! reference. The identity is compared without a lock, so another thread may end the space
//! afterwards. Each live generation of the [raw table](super::raw_table) then decides alone: the
//! thread that frees the handle takes it, or the thread that ends the space does.

use super::cache::ExtentCache;
use super::instance::ExtentInstance;
use crate::offset::{RawAllocation, RawError, RawHandle};

/// A cached space by number and identity. Any numbers are safe.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentSpaceRef {
    /// Number of the core.
    pub number: u32,
    /// Identity of the allocator.
    pub id: u64,
}

impl ExtentCache {
    /// Returns a reference that is safe to use after the space is gone.
    #[doc(hidden)]
    #[must_use]
    pub fn space_ref(&self) -> ExtentSpaceRef {
        ExtentSpaceRef { number: self.number(), id: self.allocator().id() }
    }
}

impl ExtentSpaceRef {
    /// Allocates `size` bytes if the space exists and fewer than `max_live` ranges are in use. All
    /// calls for a space pass the same limit. The space does not end during the call. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`] if the space is gone; [`RawError::Failed`] with the error of
    /// [`ExtentCache::allocate`], or
    /// [`AllocError::TooManyRanges`](crate::offset::AllocError::TooManyRanges) with the number of
    /// ranges.
    #[inline]
    pub fn allocate_raw(self, size: u64, max_live: u64) -> Result<RawAllocation, RawError> {
        let Some(instance) = self.instance() else { return Err(self.gone()) };
        instance.set_max_live(max_live);
        Ok(instance.issue_raw(instance.allocate(size)?, self.id, size))
    }

    /// Frees a raw allocation of the space with the number `number`. O(1).
    ///
    /// # Errors
    /// Those of [`ExtentCache::free_raw`]; [`RawError::Foreign`] if the space is gone, and its
    /// allocations with it.
    #[inline]
    pub fn free_raw(number: u32, handle: RawHandle) -> Result<(), RawError> {
        let RawHandle { allocator: id, slot, generation } = handle;
        let space = ExtentSpaceRef { number, id };
        let Some(instance) = space.instance() else { return Err(space.gone()) };
        let stale = || RawError::Stale { slot, generation };
        let entry = instance.raw.find(slot).ok_or_else(stale)?;
        let range = entry.take_range(generation, slot).ok_or_else(stale)?;
        instance.free(range);
        Ok(())
    }

    /// Returns whether the space still exists. O(1), without a lock.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.instance().is_some()
    }

    #[inline(always)]
    fn instance(self) -> Option<&'static ExtentInstance> {
        ExtentInstance::of_allocator(self.number, self.id)
    }

    #[cold]
    fn gone(self) -> RawError {
        RawError::Foreign { allocator: 0, handle_of: self.id }
    }
}
