//! *Slab allocator*: blocks of any size, for callers that know a block's size when they free it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::shared::Shared;
use super::slab_error::SlabError;
use super::slab_stats::SlabStats;
use crate::slab::slabs::{SIZES, class_of, reentrancy};

/// An allocator for blocks of any size whose caller passes the size of a block when it frees the
/// block.
///
/// A block up to the allocator's [limit](super::SlabAllocatorBuilder::limit) comes from a slab of
/// its size class, through the calling thread's magazines. A larger block comes from the system's
/// `malloc`. All blocks are aligned to 16. Cloning is cheap: clones are handles of the same
/// allocator. Any thread may free the blocks of any other thread.
///
/// Dropping the last handle frees all slabs with their pages, including blocks that are still in
/// use. Blocks above the limit stay valid until they are freed.
///
/// ```
/// use kvmem::slab::SlabAllocator;
///
/// let slabs = SlabAllocator::new()?;
/// let block = slabs.allocate(100)?;
/// assert!(block.addr().get().is_multiple_of(16));
/// // SAFETY: a block of 100 bytes, freed once with its size and not used afterwards.
/// unsafe {
///     block.write_bytes(7, 100);
///     slabs.free(block, 100);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Drawbacks
///
/// The size must be known when freeing; a wrong size is undefined behaviour, which
/// `KVMEM_SLAB=debug-blocks` detects. A slab is returned only when all of its objects are free.
#[derive(Clone)]
pub struct SlabAllocator {
    pub(crate) shared: Arc<Shared>,
}

impl SlabAllocator {
    /// Allocates a block of at least `size` bytes, aligned to 16 and uninitialized. O(1) except for
    /// new pages.
    ///
    /// The block is valid until it is freed or the last handle of the allocator is dropped.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::ZeroSize`] if `size` is 0, [`SlabError::TooLarge`] if it exceeds what
    /// an address space can hold, and [`SlabError::NoMemory`] if no memory is left.
    #[inline]
    pub fn allocate(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        self.shared.allocate(size)
    }

    /// Allocates a block like [`allocate`](Self::allocate), with all `size` bytes zero.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::ZeroSize`] if `size` is 0, [`SlabError::TooLarge`] if it exceeds what
    /// an address space can hold, and [`SlabError::NoMemory`] if no memory is left.
    pub fn allocate_zeroed(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        let block = self.allocate(size)?;
        // SAFETY: the block is new and has `size` bytes.
        unsafe { block.write_bytes(0, size) };
        Ok(block)
    }

    /// Allocates a block with a copy of these bytes.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::ZeroSize`] if `bytes` is empty, and [`SlabError::NoMemory`] if no
    /// memory is left.
    pub fn copy(&self, bytes: &[u8]) -> Result<NonNull<u8>, SlabError> {
        let block = self.allocate(bytes.len())?;
        // SAFETY: the block is new and has this length, so it does not overlap `bytes`.
        unsafe { block.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(block)
    }

    /// Frees a block. O(1).
    ///
    /// # Safety
    ///
    /// The block came from this allocator or a clone of its handle, was allocated with this `size`,
    /// has not been freed, and no code uses it any more. With debugging enabled, any block may be
    /// passed: a misuse is reported and the free is skipped.
    #[inline]
    pub unsafe fn free(&self, block: NonNull<u8>, size: usize) {
        // SAFETY: the caller promises what this function requires.
        unsafe { self.shared.free(block, size) }
    }

    /// Frees all cached memory: the magazines of all threads are drained into the slabs, the pages
    /// of empty slabs are returned, and unused pages go to the kernel. With debugging enabled,
    /// quarantined blocks are checked and freed.
    pub fn trim(&self) {
        self.shared.flush_quarantine();
        let _guard = reentrancy::enter();
        self.shared.magazines.trim();
        self.shared.magazines.source().pages().trim();
    }

    /// Drains the magazines that no thread needed in the working set's interval, if that has
    /// passed. Slow paths do it too; call this in programs that have become idle.
    pub fn tick(&self) {
        let _guard = reentrancy::enter();
        self.shared.magazines.tick();
    }

    /// Returns the statistics of each class and of the allocator. O(classes).
    #[must_use]
    pub fn stats(&self) -> SlabStats {
        SlabStats::of(&self.shared)
    }

    /// Returns the bytes that a request for `size` bytes occupies: the size of its class, or `size`
    /// above the limit.
    #[must_use]
    pub fn usable(&self, size: usize) -> usize {
        if size != 0 && size <= self.shared.slab_limit { SIZES[class_of(size)].size } else { size }
    }

    /// Passes every block in use to the fault hook and returns their number, if debugging is
    /// enabled; otherwise returns 0.
    pub fn report_leaks(&self) -> usize {
        self.shared.flush_quarantine();
        self.shared.leaks()
    }
}

impl fmt::Debug for SlabAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabAllocator")
            .field("limit", &self.shared.slab_limit)
            .finish_non_exhaustive()
    }
}
