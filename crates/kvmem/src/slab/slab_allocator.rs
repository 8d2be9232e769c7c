//! *Slice allocator*: blocks of any size, for those who still know the size when they free.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::hint::assert_unchecked;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;

use super::SlabAllocatorBuilder;
use super::class::{ALIGN, MAX_SIZE, SIZES, class_of};
use super::debug::{BlockTracker, TrackedBlock};
use super::fault::SlabFault;
use super::magazines::Magazines;
use super::reentrancy;
use super::slab::Chunk;
use super::slab_builder::SlabSetupError;
use super::slab_stats::SlabStats;
use super::slabs::Slabs;
use crate::sync::{AtomicUsize, Ordering};

/// Why a block could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum SlabError {
    /// A block of no bytes.
    #[error("a block of no bytes was asked for; ask for one at least")]
    ZeroSize,
    /// More than there can be.
    #[error(
        "a block of {requested} bytes was asked for, more than {max}, the max that an address space holds"
    )]
    TooLarge {
        /// What was asked for, in bytes.
        requested: usize,
        /// The most that may be, in bytes.
        max: usize,
    },
    /// No memory: the system refuses more, or the region is full.
    #[error(
        "no memory for a block of {requested} bytes: raise the limit of the process, or give the allocator a larger region"
    )]
    NoMemory {
        /// What was asked for, in bytes.
        requested: usize,
    },
}

/// The most that a block may have.
const MAX_BLOCK: usize = isize::MAX as usize - (ALIGN - 1);

/// Blocks of a batch that the magazines are asked for at once: room for so many is made before it
/// is known that there are any.
const BATCH: usize = 1024;

/// The same list: a chunk is a block by another name.
fn chunks_of(blocks: Vec<NonNull<u8>>) -> Vec<Chunk> {
    let mut blocks = ManuallyDrop::new(blocks);
    // SAFETY: the list is taken apart and used no more; a `Chunk` is laid out as the `NonNull<u8>`
    // that it is made of.
    unsafe { Vec::from_raw_parts(blocks.as_mut_ptr().cast(), blocks.len(), blocks.capacity()) }
}

/// And back.
fn blocks_of(chunks: Vec<Chunk>) -> Vec<NonNull<u8>> {
    let mut chunks = ManuallyDrop::new(chunks);
    // SAFETY: as above.
    unsafe { Vec::from_raw_parts(chunks.as_mut_ptr().cast(), chunks.len(), chunks.capacity()) }
}

/// Everything that the handles of one allocator share.
pub(crate) struct Shared {
    /// Sizes below or equal take the short way: 0 with settings that ask for more to be done.
    pub(crate) fast_limit: usize,
    /// Sizes below or equal come from slabs.
    pub(crate) slab_limit: usize,
    pub(crate) magazines: Magazines<Chunk, Slabs>,
    pub(crate) debug: Option<BlockTracker>,
    pub(crate) system_blocks: AtomicUsize,
    pub(crate) system_bytes: AtomicUsize,
}

/// Allocates blocks of any size; who frees one says how large it was.
///
/// Up to its [limit](SlabAllocatorBuilder::limit) a block comes from a slab of its size class, through
/// magazines of the thread at hand; above, from the system's `malloc`. All blocks are at multiples
/// of 16. Cheap to clone: the clones are handles of the same allocator. Any thread may free what
/// any other has allocated.
///
/// When the last handle is dropped, all slabs go with their pages, whether or not their blocks were
/// freed; blocks above the limit belong to whoever has them until they are freed.
///
/// ```
/// use kvmem::slab::SlabAllocator;
///
/// let slices = SlabAllocator::new()?;
/// let block = slices.alloc(100)?;
/// assert!(block.addr().get().is_multiple_of(16));
/// // SAFETY: the block is ours, 100 bytes; it is freed once, with its size, and not used afterwards.
/// unsafe {
///     block.write_bytes(7, 100);
///     slices.free(block, 100);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Drawbacks
///
/// The size must be known when freeing; a wrong one is undefined behaviour, which
/// `KVMEM_SLICE=debug-blocks` finds. A slab goes back only when all of its objects are free.
#[derive(Clone)]
pub struct SlabAllocator {
    pub(crate) shared: Arc<Shared>,
}

impl Shared {
    /// The class of a size that takes the short way, without the checks that it is one: they took
    /// 0.2 of 3.3 ns from a pair.
    #[inline(always)]
    fn fast_class(&self, size: usize) -> usize {
        debug_assert!(size.wrapping_sub(1) < self.fast_limit && self.fast_limit <= MAX_SIZE);
        // SAFETY: no more than the builder lets take the short way, and that is no more than the
        // largest class has.
        unsafe { assert_unchecked(size.wrapping_sub(1) < MAX_SIZE) };
        let class = class_of(size);
        // SAFETY: the builder made magazines for the classes of all sizes that take the short way.
        unsafe { assert_unchecked(class < self.magazines.classes()) };
        class
    }

    #[inline(always)]
    pub(crate) fn alloc(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        if size.wrapping_sub(1) < self.fast_limit {
            return match self.magazines.get(self.fast_class(size)) {
                Some(chunk) => Ok(chunk.0),
                None => Err(SlabError::NoMemory { requested: size }),
            };
        }
        self.alloc_slow(size)
    }

    /// # Safety
    /// As for [`SlabAllocator::free`].
    #[inline(always)]
    pub(crate) unsafe fn free(&self, block: NonNull<u8>, size: usize) {
        if size.wrapping_sub(1) < self.fast_limit {
            return self.magazines.put(self.fast_class(size), Chunk(block));
        }
        // SAFETY: the caller's promise.
        unsafe { self.free_slow(block, size) }
    }

    /// Up to `count` blocks of a size that takes the short way; returns how many: fewer only if
    /// there is no memory for more.
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

    /// Frees the blocks that `next` gives, which does not use the allocator.
    ///
    /// # Safety
    /// As for [`SlabAllocator::free`], for each of them.
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
    fn alloc_slow(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
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
        // SAFETY: what the books know as live is the caller's, and it is done with it. What rests
        // there belongs to the books.
        let result = unsafe { debug.quarantine(block, size, |block| self.plain_free(block)) };
        self.report(result);
    }

    /// A block without any books.
    fn plain_alloc(&self, size: usize) -> Option<NonNull<u8>> {
        if size <= self.slab_limit {
            return self.magazines.get(class_of(size)).map(|chunk| chunk.0);
        }
        let layout = Layout::from_size_align(size, ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let block = NonNull::new(unsafe { System.alloc(layout) })?;
        // Relaxed: only counted.
        self.system_blocks.fetch_add(1, Ordering::Relaxed);
        self.system_bytes.fetch_add(size, Ordering::Relaxed);
        Some(block)
    }

    /// # Safety
    /// The block came from [`plain_alloc`](Self::plain_alloc) with this size, and nobody uses it
    /// any more.
    unsafe fn plain_free(&self, TrackedBlock(block, size): TrackedBlock) {
        if size <= self.slab_limit {
            return self.magazines.put(class_of(size), Chunk(block));
        }
        // SAFETY: `plain_alloc` had this layout accepted.
        unsafe { System.dealloc(block.as_ptr(), Layout::from_size_align_unchecked(size, ALIGN)) };
        // Relaxed: only counted.
        self.system_blocks.fetch_sub(1, Ordering::Relaxed);
        self.system_bytes.fetch_sub(size, Ordering::Relaxed);
    }

    fn report(&self, result: Result<(), SlabFault>) {
        if let Err(fault) = result {
            (self.magazines.source().on_fault())(&fault);
        }
    }

    /// Frees what rests in the books, and tells of what is wrong with it.
    pub(crate) fn flush_quarantine(&self) {
        if let Some(debug) = &self.debug {
            let _guard = reentrancy::enter();
            // SAFETY: blocks that rest in the books are theirs alone.
            let result = debug.release_all(|block| unsafe { self.plain_free(block) });
            self.report(result);
        }
    }

    /// Tells of every block that is in use, and says how many there are.
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
    /// An allocator with pages of the system and all else as usual; the environment may ask for
    /// debugging ([`SlabSettings::from_env`](super::SlabSettings::from_env)).
    ///
    /// # Errors
    ///
    /// [`SlabSetupError::Setting`].
    pub fn new() -> Result<SlabAllocator, SlabSetupError> {
        Self::builder().build()
    }

    /// An allocator to be described further.
    pub fn builder() -> SlabAllocatorBuilder {
        SlabAllocatorBuilder::new()
    }

    /// The allocator of this process, made by the first who asks, as [`new`](Self::new) does. When
    /// debugging is asked for, its leaks are told when the process ends in the ordinary way.
    ///
    /// # Errors
    ///
    /// [`SlabSetupError::Setting`]; nothing is remembered then.
    pub fn get() -> Result<&'static SlabAllocator, SlabSetupError> {
        static INIT: Mutex<()> = Mutex::new(());
        if let Some(existing) = PROCESS_ALLOCATOR.get() {
            return Ok(existing);
        }
        // The lock guards no data: whoever panicked under it left nothing half done.
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

    /// A block of at least `size` bytes at a multiple of 16, not initialized. O(1) but for pages
    /// that are new.
    ///
    /// It may be used until it is freed or the last handle of the allocator is dropped.
    ///
    /// # Errors
    ///
    /// [`SlabError`] says which: no bytes, too many, no memory.
    #[inline]
    pub fn alloc(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        self.shared.alloc(size)
    }

    /// As [`alloc`](Self::alloc), with all `size` bytes zero.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, size: usize) -> Result<NonNull<u8>, SlabError> {
        let block = self.alloc(size)?;
        // SAFETY: the block is new and has `size` bytes.
        unsafe { block.write_bytes(0, size) };
        Ok(block)
    }

    /// A block with a copy of these bytes.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    pub fn copy(&self, bytes: &[u8]) -> Result<NonNull<u8>, SlabError> {
        let block = self.alloc(bytes.len())?;
        // SAFETY: the block is new, has so many bytes, and so is nowhere near `bytes`.
        unsafe { block.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(block)
    }

    /// Frees a block. O(1).
    ///
    /// # Safety
    ///
    /// The block came from this allocator (or a clone of the handle), was asked for with this
    /// `size`, has not been freed, and nobody uses it any more. With debugging on, any block
    /// may be given: what is wrong is told, and left out.
    #[inline]
    pub unsafe fn free(&self, block: NonNull<u8>, size: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.shared.free(block, size) }
    }

    /// Blocks of one size at once: appends up to `count` to `out`, and says how many. Fewer only if
    /// there is no memory for more. What was in `out` stays. O(blocks).
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc), if there is not even one.
    pub fn alloc_batch(
        &self,
        size: usize,
        count: usize,
        out: &mut Vec<NonNull<u8>>,
    ) -> Result<usize, SlabError> {
        let mut done = 0;
        if size.wrapping_sub(1) < self.shared.fast_limit {
            done = self.shared.alloc_fast_batch(size, count, out);
        }
        // Those of the system, those that go through the books, and the one of which it is known
        // that there is no memory for it.
        while done < count {
            match self.alloc(size) {
                Ok(block) => out.push(block),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
    }

    /// Frees blocks of one size, as [`free`](Self::free) does one by one, in less time. O(blocks).
    ///
    /// # Safety
    ///
    /// Each is one that [`free`](Self::free) could be called with, and none is there twice.
    pub unsafe fn free_batch(&self, blocks: &[NonNull<u8>], size: usize) {
        let mut blocks = blocks.iter().copied();
        // SAFETY: the caller's promise.
        unsafe { self.shared.free_each(size, || blocks.next()) };
    }

    /// Gives back what is cached: the magazines of all threads to the slabs, empty slabs to the
    /// pages, pages that are not in use to the kernel. Blocks that were freed under debugging
    /// are looked over.
    pub fn trim(&self) {
        self.shared.flush_quarantine();
        let _guard = reentrancy::enter();
        self.shared.magazines.trim();
        self.shared.magazines.source().pages().trim();
    }

    /// Gives back what nobody came for in the working set's time, if that is over. It is done on
    /// slow ways too: this is for programs that have fallen silent.
    pub fn tick(&self) {
        let _guard = reentrancy::enter();
        self.shared.magazines.tick();
    }

    /// What there is of each class, and altogether. O(classes).
    #[must_use]
    pub fn stats(&self) -> SlabStats {
        SlabStats::of(&self.shared)
    }

    /// Bytes that a request for `size` bytes really takes: those of its class, or `size` above the
    /// limit.
    #[must_use]
    pub fn usable(&self, size: usize) -> usize {
        if size != 0 && size <= self.shared.slab_limit { SIZES[class_of(size)].size } else { size }
    }

    /// With debugging on, tells the hook of every block that is in use now, and says how many there
    /// are; else 0.
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
