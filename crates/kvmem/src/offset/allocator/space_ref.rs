//! *Space reference*: a space by number and identity, for faces of other languages.
//!
//! A handle of an object of another language must be safe after the allocator is gone, as an
//! [`Allocation`](super::Allocation) is. Counting references to the allocator in each handle would
//! cost two atomic read-modify-writes per allocation, on a line that all threads share. The cores
//! of all spaces are in a registry for the lifetime of the process, so a number always finds one,
//! and the identity, compared under the lock, shows whether it is still that of the space.

use super::allocator::OffsetAllocator;
use super::raw_handle::{RawAllocation, RawHandle};
use super::registry;
use crate::offset::error::RawError;

/// A space by number and identity. Any numbers are safe.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceRef {
    /// Number of the core.
    pub number: u32,
    /// Identity of the allocator.
    pub id: u64,
}

impl OffsetAllocator {
    /// Returns a reference that is safe to use after the allocator is gone.
    #[doc(hidden)]
    #[must_use]
    pub fn space_ref(&self) -> SpaceRef {
        SpaceRef { number: self.core_index(), id: self.id() }
    }
}

impl SpaceRef {
    /// Allocates `size` bytes if the allocator exists and fewer than `max_live` allocations are
    /// live. O(1).
    ///
    /// # Errors
    /// [`RawError::Foreign`] if the allocator is gone; [`RawError::Failed`] with the error of
    /// [`OffsetAllocator::allocate`], or
    /// [`AllocError::TooManyRanges`](super::AllocError::TooManyRanges) with the number of live
    /// allocations.
    #[inline]
    pub fn allocate_raw(self, size: u64, max_live: u64) -> Result<RawAllocation, RawError> {
        let Some(core) = registry::find_core(self.number) else { return Err(self.gone()) };
        core.allocate_raw(self.id, size, max_live)
    }

    /// Frees a raw allocation of the space with the number `number`; returns its size in bytes.
    /// O(1).
    ///
    /// # Errors
    /// Those of [`OffsetAllocator::free_raw`]; [`RawError::Foreign`] if the allocator is gone, and
    /// its allocations with it.
    #[inline]
    pub fn free_raw(number: u32, handle: RawHandle) -> Result<u64, RawError> {
        let RawHandle { allocator: id, slot, generation } = handle;
        let Some(core) = registry::find_core(number) else {
            return Err(SpaceRef { number, id }.gone());
        };
        core.free_raw(id, slot, generation)
    }

    /// Returns whether the allocator still exists. O(1).
    #[must_use]
    pub fn is_open(self) -> bool {
        registry::find_core(self.number).is_some_and(|core| core.is_open(self.id))
    }

    #[cold]
    fn gone(self) -> RawError {
        RawError::Foreign { allocator: 0, handle_of: self.id }
    }
}
