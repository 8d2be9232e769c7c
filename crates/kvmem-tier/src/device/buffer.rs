//! *Aligned buffer*: memory for direct I/O.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::format::BLOCK;

/// Bytes that begin at a multiple of the block.
pub struct AlignedBuffer {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its bytes.
unsafe impl Send for AlignedBuffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Creates a buffer of `blocks` blocks of zeros.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let len = blocks * BLOCK;
        let Some(layout) = layout(len) else {
            return AlignedBuffer { at: NonNull::dangling(), len: 0 };
        };
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc::alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at) else { alloc::handle_alloc_error(layout) };
        AlignedBuffer { at, len }
    }

    /// Creates a buffer of at least one block that holds `bytes`, and zeros behind them.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let len = bytes.len().max(1).next_multiple_of(BLOCK);
        let Some(layout) = layout(len) else { return AlignedBuffer::new(0) };
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc::alloc(layout) };
        let Some(at) = NonNull::new(at) else { alloc::handle_alloc_error(layout) };
        // SAFETY: `len` bytes were allocated just now, at least as many as `bytes` has. All of them
        // have a value afterwards.
        unsafe {
            at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            at.add(bytes.len()).write_bytes(0, len - bytes.len());
        }
        AlignedBuffer { at, len }
    }
}

/// Returns the layout of `len` bytes; `None` if there are none.
fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, BLOCK).ok().filter(|layout| layout.size() > 0)
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialized bytes.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns `len` initialized bytes, and the reference is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.len) {
            // SAFETY: `new` allocated it with this layout.
            unsafe { alloc::dealloc(self.at.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_and_aligned() {
        let mut buffer = AlignedBuffer::new(3);
        assert!(buffer.len() == 3 * BLOCK && buffer.iter().all(|&byte| byte == 0));
        assert!((buffer.as_ptr() as usize).is_multiple_of(BLOCK));
        buffer[BLOCK] = 7;
        assert_eq!(buffer[BLOCK], 7);
        assert!(AlignedBuffer::new(0).is_empty());
    }

    #[test]
    fn a_copy_ends_with_zeros() {
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1] {
            let copy = AlignedBuffer::copy_of(&vec![7; len]);
            assert_eq!(copy.len(), len.div_ceil(BLOCK).max(1) * BLOCK);
            assert!((copy.as_ptr() as usize).is_multiple_of(BLOCK));
            assert!(copy[..len].iter().all(|&byte| byte == 7));
            assert!(copy[len..].iter().all(|&byte| byte == 0));
        }
    }
}
