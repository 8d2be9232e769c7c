//! *Slab allocator*: blocks of any size, for callers that know a block's size when they free it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::hint::assert_unchecked;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;

use super::block_tracker::{BlockTracker, TrackedBlock};
use super::slab_builder::SlabAllocatorBuilder;
use super::slab_builder::SlabSetupError;
use super::slab_stats::SlabStats;
use crate::slab::magazine::Magazines;
use crate::slab::slabs::Chunk;
use crate::slab::slabs::SlabFault;
use crate::slab::slabs::Slabs;
use crate::slab::slabs::reentrancy;
use crate::slab::slabs::{ALIGN, MAX_SIZE, SIZES, class_of};
use crate::sync::{AtomicUsize, Ordering};

/// The reason why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum SlabError {
    /// The requested size is 0.
    #[error("cannot allocate a block of 0 bytes; request at least 1 byte")]
    ZeroSize,
    /// The requested size exceeds what an address space can hold.
    #[error(
        "cannot allocate a block of {requested} bytes: an address space holds at most {max} bytes; \
         request a smaller block"
    )]
    TooLarge {
        /// The requested size, in bytes.
        requested: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// No memory is left: the system provides no more, or the region is full.
    #[error(
        "cannot allocate a block of {requested} bytes: no memory is left; raise the memory limit \
         of \
         the process, or give the allocator a larger region"
    )]
    NoMemory {
        /// The requested size, in bytes.
        requested: usize,
    },
}

/// The largest size of a block.
const MAX_BLOCK: usize = isize::MAX as usize - (ALIGN - 1);

/// Blocks of a batch that the magazines are asked for at once. The buffer is grown by this number
/// before it is known whether that many exist.
const BATCH: usize = 1024;

/// Converts the list without copying: a chunk is a block in another type.
fn chunks_of(blocks: Vec<NonNull<u8>>) -> Vec<Chunk> {
    let mut blocks = ManuallyDrop::new(blocks);
    // SAFETY: the list is taken apart and not used again; a `Chunk` has the layout of the
    // `NonNull<u8>` that it wraps.
    unsafe { Vec::from_raw_parts(blocks.as_mut_ptr().cast(), blocks.len(), blocks.capacity()) }
}

/// Converts the list back without copying.
fn blocks_of(chunks: Vec<Chunk>) -> Vec<NonNull<u8>> {
    let mut chunks = ManuallyDrop::new(chunks);
    // SAFETY: the list is taken apart and not used again; a `Chunk` has the layout of the
    // `NonNull<u8>` that it wraps.
    unsafe { Vec::from_raw_parts(chunks.as_mut_ptr().cast(), chunks.len(), chunks.capacity()) }
}

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

/// An allocator for blocks of any size that is told the size of a block when the block is freed.
///
/// A block up to the allocator's [limit](SlabAllocatorBuilder::limit) comes from a slab of its size
/// class, through the calling thread's magazines. A larger block comes from the system's `malloc`.
/// All blocks are aligned to 16. Cloning is cheap: clones are handles of the same allocator. Any
/// thread may free the blocks of any other thread.
///
/// Dropping the last handle frees all slabs with their pages, including blocks that are still in
/// use. Blocks above the limit stay valid until they are freed.
///
/// ```
/// use kvmem::slab::SlabAllocator;
///
/// let slices = SlabAllocator::new()?;
/// let block = slices.allocate(100)?;
/// assert!(block.addr().get().is_multiple_of(16));
/// // SAFETY: a block of 100 bytes, freed once with its size and not used afterwards.
/// unsafe {
///     block.write_bytes(7, 100);
///     slices.free(block, 100);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Drawbacks
///
/// The size must be known when freeing; a wrong size is undefined behaviour, which
/// `KVMEM_SLICE=debug-blocks` detects. A slab is returned only when all of its objects are free.
#[derive(Clone)]
pub struct SlabAllocator {
    pub(crate) shared: Arc<Shared>,
}

impl Shared {
    /// Returns the class of a size that takes the fast path. Bounds checks are omitted: they took
    /// 0.2 of 3.3 ns for a pair.
    #[inline(always)]
    fn fast_class(&self, size: usize) -> usize {
        debug_assert!(size.wrapping_sub(1) < self.fast_limit && self.fast_limit <= MAX_SIZE);
        // SAFETY: the builder sets `fast_limit` to at most the largest class.
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
                Some(chunk) => Ok(chunk.0),
                None => Err(SlabError::NoMemory { requested: size }),
            };
        }
        self.allocate_slow(size)
    }

    /// # Safety
    /// The requirements of [`SlabAllocator::free`].
    #[inline(always)]
    pub(crate) unsafe fn free(&self, block: NonNull<u8>, size: usize) {
        if size.wrapping_sub(1) < self.fast_limit {
            return self.magazines.put(self.fast_class(size), Chunk(block));
        }
        // SAFETY: the caller's promise.
        unsafe { self.free_slow(block, size) }
    }

    /// Appends up to `count` blocks of a size on the fast path; returns how many. Fewer only if no
    /// memory is left.
    fn alloc_fast_batch(&self, size: usize, count: usize, out: &mut Vec<NonNull<u8>>) -> usize {
        let class = class_of(size);
        let mut chunks = chunks_of(std::mem::take(out));
        let mut done = 0;
        while done < count {
            let (want, before) = ((count - done).min(BATCH), chunks.len());
            self.magazines.get_batch(class, want, &mut chunks);
            let got = chunks.len() - before;
            done += got;
            if got < want {
                break;
            }
        }
        *out = blocks_of(chunks);
        done
    }

    /// Frees each block that `next` returns. `next` must not use the allocator.
    ///
    /// # Safety
    /// Each block satisfies the requirements of [`SlabAllocator::free`].
    pub(crate) unsafe fn free_each(
        &self,
        size: usize,
        mut next: impl FnMut() -> Option<NonNull<u8>>,
    ) {
        if size.wrapping_sub(1) < self.fast_limit {
            return self.magazines.put_each(class_of(size), || next().map(Chunk));
        }
        while let Some(block) = next() {
            // SAFETY: the caller's promise.
            unsafe { self.free_slow(block, size) };
        }
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

    #[cold]
    unsafe fn free_slow(&self, block: NonNull<u8>, size: usize) {
        let _guard = reentrancy::enter();
        let Some(debug) = &self.debug else {
            if size != 0 && size <= MAX_BLOCK {
                // SAFETY: the caller's promise.
                unsafe { self.plain_free(TrackedBlock(block, size)) };
            }
            return;
        };
        // SAFETY: a block recorded as live is the caller's, which has freed it. A quarantined block
        // belongs to the table.
        let result = unsafe { debug.quarantine(block, size, |block| self.plain_free(block)) };
        self.report(result);
    }

    /// Allocates a block without debug tracking.
    fn plain_alloc(&self, size: usize) -> Option<NonNull<u8>> {
        if size <= self.slab_limit {
            return self.magazines.get(class_of(size)).map(|chunk| chunk.0);
        }
        let layout = Layout::from_size_align(size, ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let block = NonNull::new(unsafe { System.alloc(layout) })?;
        // Relaxed: statistics.
        self.system_blocks.fetch_add(1, Ordering::Relaxed);
        self.system_bytes.fetch_add(size, Ordering::Relaxed);
        Some(block)
    }

    /// # Safety
    /// The block came from [`plain_alloc`](Self::plain_alloc) with this size, and no code uses it
    /// any more.
    unsafe fn plain_free(&self, TrackedBlock(block, size): TrackedBlock) {
        if size <= self.slab_limit {
            return self.magazines.put(class_of(size), Chunk(block));
        }
        // SAFETY: `plain_alloc` has validated this layout.
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
            // SAFETY: quarantined blocks belong to the table alone.
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

impl SlabAllocator {
    /// Makes an allocator with pages from the system and default options. The environment may
    /// enable debugging; see [`SlabSettings::from_env`](super::SlabSettings::from_env).
    ///
    /// # Errors
    ///
    /// Returns [`SlabSetupError::Setting`] if an environment variable holds an unknown word.
    pub fn new() -> Result<SlabAllocator, SlabSetupError> {
        Self::builder().build()
    }

    /// Returns a builder for an allocator with other options.
    pub fn builder() -> SlabAllocatorBuilder {
        SlabAllocatorBuilder::new()
    }

    /// Returns the allocator of this process. The first call makes it, as [`new`](Self::new) does.
    /// If debugging is enabled, its leaks are reported when the process exits normally.
    ///
    /// # Errors
    ///
    /// Returns [`SlabSetupError::Setting`] if an environment variable holds an unknown word. A
    /// later call tries again.
    pub fn get() -> Result<&'static SlabAllocator, SlabSetupError> {
        static INIT: Mutex<()> = Mutex::new(());
        if let Some(existing) = PROCESS_ALLOCATOR.get() {
            return Ok(existing);
        }
        // The lock guards no data: a thread that panicked under it left nothing half done.
        let _init = INIT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = PROCESS_ALLOCATOR.get() {
            return Ok(existing);
        }
        let new_one = Self::new()?;
        if new_one.shared.debug.is_some() {
            crate::sys::at_exit(report_at_exit);
        }
        Ok(PROCESS_ALLOCATOR.get_or_init(|| new_one))
    }

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
        // SAFETY: the caller's promise.
        unsafe { self.shared.free(block, size) }
    }

    /// Allocates up to `count` blocks of one size and appends them to `out`; returns how many.
    /// Fewer only if no memory is left for more. O(blocks).
    ///
    /// # Errors
    ///
    /// Returns an error if not a single block was allocated: [`SlabError::ZeroSize`] if `size` is
    /// 0, [`SlabError::TooLarge`] if it exceeds what an address space can hold, and
    /// [`SlabError::NoMemory`] if no memory is left.
    pub fn allocate_batch(
        &self,
        size: usize,
        count: usize,
        out: &mut Vec<NonNull<u8>>,
    ) -> Result<usize, SlabError> {
        let mut done = 0;
        if size.wrapping_sub(1) < self.shared.fast_limit {
            done = self.shared.alloc_fast_batch(size, count, out);
        }
        // Covers blocks of the system's allocator, tracked blocks, and the first block for which
        // memory is missing.
        while done < count {
            match self.allocate(size) {
                Ok(block) => out.push(block),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
    }

    /// Frees blocks of one size. Equivalent to a [`free`](Self::free) of each, but faster.
    /// O(blocks).
    ///
    /// # Safety
    ///
    /// Each block satisfies the requirements of [`free`](Self::free), and no block occurs twice.
    pub unsafe fn free_batch(&self, blocks: &[NonNull<u8>], size: usize) {
        let mut blocks = blocks.iter().copied();
        // SAFETY: the caller's promise.
        unsafe { self.shared.free_each(size, || blocks.next()) };
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

static PROCESS_ALLOCATOR: OnceLock<SlabAllocator> = OnceLock::new();

extern "C" fn report_at_exit() {
    if let Some(slices) = PROCESS_ALLOCATOR.get() {
        slices.report_leaks();
    }
}

impl fmt::Debug for SlabAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceAllocator")
            .field("limit", &self.shared.slab_limit)
            .finish_non_exhaustive()
    }
}
