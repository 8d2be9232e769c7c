//! *Chains*: blocks linked through their own memory.

use std::ptr::NonNull;

use super::slab_allocator::SlabAllocator;

impl SlabAllocator {
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
    /// let slices = SlabAllocator::new()?;
    /// let mut first = ptr::null_mut();
    /// for value in 0..100 {
    ///     let node = slices.allocate(size_of::<Node>())?.cast::<Node>();
    ///     // SAFETY: a new block that is large enough.
    ///     unsafe { node.write(Node { value, next: first }) };
    ///     first = node.as_ptr();
    /// }
    /// let offset = std::mem::offset_of!(Node, next);
    /// // SAFETY: 100 blocks of this size, linked at this offset and not used afterwards.
    /// unsafe { slices.free_chain(NonNull::new(first.cast()), size_of::<Node>(), offset) };
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
            // SAFETY: the caller promises that the link is within the block.
            next =
                NonNull::new(unsafe { block.add(next_offset).cast::<*mut u8>().read_unaligned() });
            Some(block)
        };
        // SAFETY: the caller's promise.
        unsafe { self.shared.free_each(size, take) };
    }
}
