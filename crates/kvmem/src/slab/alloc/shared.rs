//! *Shared state* of all handles of a slab allocator: allocates and frees one block.
//!
//! A small block without debug tracking takes the fast path, straight into the magazines. All
//! others take the slow path: blocks of the system's allocator, tracked blocks, and errors.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::assert_unchecked;
use std::ptr::NonNull;

use super::block_tracker::{BlockTracker, TrackedBlock};
use super::slab_error::SlabError;
use crate::slab::magazine::Magazines;
use crate::slab::slabs::{ALIGN, Chunk, MAX_SIZE, SlabFault, Slabs, class_of, reentrancy};
use crate::sync::{AtomicUsize, Ordering};

/// The largest size of a block.
const MAX_BLOCK: usize = isize::MAX as usize - (ALIGN - 1);

/// The state that all handles of an allocator share.
pub(crate) struct Shared {
    /// Sizes up to this one take the fast path; 0 if the settings require more work per block.
    pub(crate) fast_limit: usize,
    /// Sizes up to this one come from slabs.
    pub(crate) slab_limit: usize,
    pub(crate) magazines: Magazines<Chunk, Slabs>,
    pub(crate) debug: Option<BlockTracker>,
    pub(crate) system_blocks: AtomicUsize,
    pub(crate) system_bytes: AtomicUsize,
}

impl Shared {
    /// Returns the class of a size that takes the fast path. Bounds checks are omitted: they took
    /// 0.2 of 3.3 ns for a pair.
    #[inline(always)]
    fn fast_class(&self, size: usize) -> usize {
        debug_assert!(size.wrapping_sub(1) < self.fast_limit && self.fast_limit <= MAX_SIZE);
        // SAFETY: callers have checked `size` against `fast_limit`, and the builder sets that to at
        // most the largest class.
        unsafe { assert_unchecked(size.wrapping_sub(1) < MAX_SIZE) };
        let class = class_of(size);
        // SAFETY: the builder made magazines for the classes of all sizes on the fast path.
        unsafe { assert_unchecked(class < self.magazines.classes()) };
        class
    }

    #[inline(always)]
    pub(crate) fn allocate(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        if size.wrapping_sub(1) < self.fast_limit {
            return match self.magazines.get(self.fast_class(size)) {
                Some(chunk) => Ok(chunk.at()),
                None => Err(SlabError::NoMemory { requested: size }),
            };
        }
        self.allocate_slow(size)
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The requirements of [`SlabAllocator::free`](super::SlabAllocator::free).
    #[inline(always)]
    pub(crate) unsafe fn free(&self, block: NonNull<u8>, size: usize) {
        if size.wrapping_sub(1) < self.fast_limit {
            // SAFETY: the caller promises that the block was allocated here with this size, so it
            // is of this class, and that no code uses it any more.
            let chunk = unsafe { Chunk::new(block) };
            return self.magazines.put(self.fast_class(size), chunk);
        }
        // SAFETY: the caller promises what `SlabAllocator::free` requires.
        unsafe { self.free_slow(block, size) }
    }

    #[cold]
    fn allocate_slow(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        match size {
            0 => return Err(SlabError::ZeroSize),
            size if size > MAX_BLOCK => {
                return Err(SlabError::TooLarge { requested: size, max: MAX_BLOCK });
            }
            _ => {}
        }
        let _guard = reentrancy::enter();
        let block = self.plain_alloc(size).ok_or(SlabError::NoMemory { requested: size })?;
        if let Some(debug) = &self.debug {
            debug.track(block, size);
        }
        Ok(block)
    }

    /// Frees a block that does not take the fast path.
    ///
    /// # Safety
    ///
    /// The requirements of [`SlabAllocator::free`](super::SlabAllocator::free).
    #[cold]
    pub(crate) unsafe fn free_slow(&self, block: NonNull<u8>, size: usize) {
        let _guard = reentrancy::enter();
        let Some(debug) = &self.debug else {
            if size != 0 && size <= MAX_BLOCK {
                // SAFETY: without tracking, `allocate_slow` returned a block of `plain_alloc`. The
                // caller promises that it has this size and that no code uses it any more.
                unsafe { self.plain_free(TrackedBlock(block, size)) };
            }
            return;
        };
        // SAFETY: the caller promises that it does not use the block any more, if it is one. The
        // blocks that leave the quarantine came from `plain_alloc` with the recorded size, and the
        // table was their only user.
        let result = unsafe { debug.quarantine(block, size, |block| self.plain_free(block)) };
        self.report(result);
    }

    /// Allocates a block without debug tracking.
    fn plain_alloc(&self, size: usize) -> Option<NonNull<u8>> {
        if size <= self.slab_limit {
            return self.magazines.get(class_of(size)).map(Chunk::at);
        }
        let layout = Layout::from_size_align(size, ALIGN).ok()?;
        // SAFETY: the layout is not empty: `allocate_slow` has rejected size 0.
        let block = NonNull::new(unsafe { System.alloc(layout) })?;
        // Relaxed: statistics.
        self.system_blocks.fetch_add(1, Ordering::Relaxed);
        self.system_bytes.fetch_add(size, Ordering::Relaxed);
        Some(block)
    }

    /// # Safety
    ///
    /// The block came from [`plain_alloc`](Self::plain_alloc) with this size, and no code uses it
    /// any more.
    unsafe fn plain_free(&self, TrackedBlock(block, size): TrackedBlock) {
        if size <= self.slab_limit {
            // SAFETY: the caller promises that the block came from `plain_alloc` with this size, so
            // it is of this class, and that no code uses it any more.
            return self.magazines.put(class_of(size), unsafe { Chunk::new(block) });
        }
        // SAFETY: `plain_alloc` allocated the block with this layout, which it has validated. The
        // caller promises that no code uses the block any more.
        unsafe { System.dealloc(block.as_ptr(), Layout::from_size_align_unchecked(size, ALIGN)) };
        // Relaxed: statistics.
        self.system_blocks.fetch_sub(1, Ordering::Relaxed);
        self.system_bytes.fetch_sub(size, Ordering::Relaxed);
    }

    fn report(&self, result: Result<(), SlabFault>) {
        if let Err(fault) = result {
            (self.magazines.source().on_fault())(&fault);
        }
    }

    /// Frees the blocks in quarantine and reports the faults that this finds.
    pub(crate) fn flush_quarantine(&self) {
        if let Some(debug) = &self.debug {
            let _guard = reentrancy::enter();
            // SAFETY: quarantined blocks came from `plain_alloc` with the recorded size, and the
            // table was their only user.
            let result = debug.release_all(|block| unsafe { self.plain_free(block) });
            self.report(result);
        }
    }

    /// Reports every block in use and returns their number.
    pub(crate) fn leaks(&self) -> usize {
        let live = self.debug.as_ref().map_or(Vec::new(), BlockTracker::live);
        for leak in &live {
            (self.magazines.source().on_fault())(leak);
        }
        live.len()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.flush_quarantine();
        self.leaks();
    }
}
