//! *Batches*: many blocks of one size at once, in lists or linked through their own memory.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::shared::Shared;
use super::slab_allocator::SlabAllocator;
use super::slab_error::SlabError;
use crate::slab::slabs::{Chunk, class_of};

/// Blocks of a batch that are requested from the magazines at once. The buffer is grown by this
/// number before it is known whether that many exist.
const BATCH: usize = 1024;

/// Converts the list without copying: a chunk is a block in another type. The list is only
/// appended to: the chunks in it stay blocks in use.
fn chunks_of(blocks: Vec<NonNull<u8>>) -> Vec<Chunk> {
    let mut blocks = ManuallyDrop::new(blocks);
    // SAFETY: the parts are those of a list that is not used or dropped again. `Chunk` is
    // `repr(transparent)` over `NonNull<u8>`, so layout and validity are equal.
    unsafe { Vec::from_raw_parts(blocks.as_mut_ptr().cast(), blocks.len(), blocks.capacity()) }
}

/// Converts the list back without copying.
fn blocks_of(chunks: Vec<Chunk>) -> Vec<NonNull<u8>> {
    let mut chunks = ManuallyDrop::new(chunks);
    // SAFETY: the parts are those of a list that is not used or dropped again. `Chunk` is
    // `repr(transparent)` over `NonNull<u8>`, so layout and validity are equal.
    unsafe { Vec::from_raw_parts(chunks.as_mut_ptr().cast(), chunks.len(), chunks.capacity()) }
}

impl Shared {
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

    /// Frees each block that `next` returns.
    ///
    /// # Safety
    ///
    /// `next` does not use the allocator: it is called under the owner's lock.
    /// Each block satisfies the requirements of [`SlabAllocator::free`].
    pub(crate) unsafe fn free_each(
        &self,
        size: usize,
        mut next: impl FnMut() -> Option<NonNull<u8>>,
    ) {
        if size.wrapping_sub(1) < self.fast_limit {
            // SAFETY: the caller promises that the block was allocated here with this size, so it
            // is of this class, and that no code uses it any more.
            let chunk = |block| unsafe { Chunk::new(block) };
            // SAFETY: the caller promises that `next` does not use the allocator.
            unsafe { self.magazines.put_each(class_of(size), || next().map(chunk)) };
            return;
        }
        while let Some(block) = next() {
            // SAFETY: the caller promises of each block what `SlabAllocator::free` requires.
            unsafe { self.free_slow(block, size) };
        }
    }
}

impl SlabAllocator {
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
        // SAFETY: the caller promises of each block what `free` requires, and that none occurs
        // twice. Reading the list does not use the allocator.
        unsafe { self.shared.free_each(size, || blocks.next()) };
    }

    /// Frees a linked list of blocks of one size. Each block holds the address of the next one
    /// `next_offset` bytes from its beginning; the last block holds null there. `None` is an empty
    /// list. O(blocks).
    ///
    /// ```
    /// use std::ptr::{self, NonNull};
    ///
    /// use kvmem::slab::SlabAllocator;
    ///
    /// struct Node {
    ///     value: u64,
    ///     next: *mut Node,
    /// }
    ///
    /// let slabs = SlabAllocator::new()?;
    /// let mut first = ptr::null_mut();
    /// for value in 0..100 {
    ///     let node = slabs.allocate(size_of::<Node>())?.cast::<Node>();
    ///     // SAFETY: a new block that is large enough.
    ///     unsafe { node.write(Node { value, next: first }) };
    ///     first = node.as_ptr();
    /// }
    /// let offset = std::mem::offset_of!(Node, next);
    /// // SAFETY: 100 blocks of this size, linked at this offset and not used afterwards.
    /// unsafe { slabs.free_chain(NonNull::new(first.cast()), size_of::<Node>(), offset) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Each block satisfies the requirements of [`free`](Self::free), and the links are as
    /// described. The links need not be aligned.
    pub unsafe fn free_chain(&self, first: Option<NonNull<u8>>, size: usize, next_offset: usize) {
        let mut next = first;
        let take = || {
            let block = next?;
            // Read before the block is freed: the link may be overwritten afterwards.
            // SAFETY: the caller promises that the block is its own and holds an initialized link
            // at this offset.
            next =
                NonNull::new(unsafe { block.add(next_offset).cast::<*mut u8>().read_unaligned() });
            Some(block)
        };
        // SAFETY: the caller promises of each block what `free` requires. Following the links does
        // not use the allocator.
        unsafe { self.shared.free_each(size, take) };
    }
}
