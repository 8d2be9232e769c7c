//! *Chains*: blocks that are linked through themselves.

use std::ptr::NonNull;

use super::SlabAllocator;

impl SlabAllocator {
    /// Frees a chain of blocks of one size: each has, `next_offset` bytes from its beginning, the
    /// address of the next one, and the last one null there. No `first` is no chain. O(blocks).
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
    ///     let node = slices.alloc(size_of::<Node>())?.cast::<Node>();
    ///     // SAFETY: the block is ours and large enough.
    ///     unsafe { node.write(Node { value, next: first }) };
    ///     first = node.as_ptr();
    /// }
    /// let offset = std::mem::offset_of!(Node, next);
    /// // SAFETY: 100 blocks of this size, linked there, not used any more.
    /// unsafe { slices.free_chain(NonNull::new(first.cast()), size_of::<Node>(), offset) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Each block is one that [`free`](Self::free) could be called with; the addresses are as
    /// described. They need not be aligned.
    pub unsafe fn free_chain(&self, first: Option<NonNull<u8>>, size: usize, next_offset: usize) {
        let mut next = first;
        let take = || {
            let block = next?;
            // Read before it is freed: after that, the link may be anything.
            // SAFETY: the link is within the block: the caller's promise.
            next =
                NonNull::new(unsafe { block.add(next_offset).cast::<*mut u8>().read_unaligned() });
            Some(block)
        };
        // SAFETY: the caller's promise.
        unsafe { self.shared.free_each(size, take) };
    }
}
