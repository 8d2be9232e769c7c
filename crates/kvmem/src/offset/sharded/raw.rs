//! *Raw interface* of a space with shards. A handle names the allocator of its shard.

use std::ops::Range;

use super::sharded_allocator::ShardedAllocator;
use crate::offset::allocator::{Allocation, OffsetAllocator, RawAllocation, RawHandle};
use crate::offset::error::{AllocError, RawError};

/// The raw interface: allocations identified by plain data, for FFI.
impl ShardedAllocator {
    /// Allocates `size` bytes, as [`allocate`](Self::allocate) does, until
    /// [`free_raw`](Self::free_raw) or the end of the process.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.serve(size, |shard| shard.allocate_raw(size))
    }

    /// Allocates `size` bytes at a multiple of `align`, as
    /// [`allocate_aligned`](Self::allocate_aligned) does, until [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// Those of [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        self.serve(size, |shard| shard.allocate_aligned_raw(size, align))
    }

    /// Frees a raw allocation in its shard; returns its size in bytes. O(log shards).
    ///
    /// # Errors
    /// [`RawError::Foreign`] if the handle belongs to no shard, with the identity of the first
    /// shard; [`RawError::Stale`] if it identifies no live allocation. Nothing changes then.
    ///
    /// ```
    /// use kvmem::offset::{OffsetAllocator, RawError};
    ///
    /// let space = OffsetAllocator::builder(1 << 20).shards(4).build()?;
    /// let a = space.allocate_raw(4096)?;
    /// assert_eq!(space.free_raw(a.handle), Ok(4096));
    /// assert!(matches!(space.free_raw(a.handle), Err(RawError::Stale { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_raw(&self, handle: RawHandle) -> Result<u64, RawError> {
        self.shard_of(handle)?.free_raw(handle)
    }

    /// Returns the bytes of a raw allocation. O(log shards).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub fn resolve_raw(&self, handle: RawHandle) -> Result<Range<u64>, RawError> {
        self.shard_of(handle)?.resolve_raw(handle)
    }

    /// Returns all raw allocations that are alive, in the order of their offsets. As
    /// [`OffsetAllocator::raw_allocations`], for each shard.
    #[must_use]
    pub fn raw_allocations(&self) -> Vec<RawAllocation> {
        self.shards.iter().flat_map(OffsetAllocator::raw_allocations).collect()
    }

    /// Shortens a raw allocation as [`Allocation::shrink`] does; the handle stays valid.
    ///
    /// # Errors
    /// Those of [`OffsetAllocator::shrink_raw`].
    pub fn shrink_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.shard_of(handle)?.shrink_raw(handle, new_size)
    }

    /// Lengthens a raw allocation as [`Allocation::extend`] does; the handle stays valid.
    ///
    /// # Errors
    /// Those of [`OffsetAllocator::extend_raw`].
    pub fn extend_raw(&self, handle: RawHandle, new_size: u64) -> Result<(), RawError> {
        self.shard_of(handle)?.extend_raw(handle, new_size)
    }

    /// Turns a raw allocation into an RAII one; the handle is stale afterwards. O(log shards).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub fn adopt_raw(&self, handle: RawHandle) -> Result<Allocation, RawError> {
        self.shard_of(handle)?.adopt_raw(handle)
    }

    /// Returns the shard that issued a handle.
    fn shard_of(&self, handle: RawHandle) -> Result<&OffsetAllocator, RawError> {
        // Shards are created in order, so their identities ascend.
        let at = self.shards.binary_search_by_key(&handle.allocator, OffsetAllocator::id);
        let foreign =
            |_| RawError::Foreign { allocator: self.shards[0].id(), handle_of: handle.allocator };
        at.map(|at| &self.shards[at]).map_err(foreign)
    }
}
