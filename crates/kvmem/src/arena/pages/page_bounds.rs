//! *Page bounds*: addresses of whole pages, for calls of the kernel.
//!
//! Memory of another owner may begin and end within a page, and the rest of the page is not part of
//! its allocation. Pointers may leave an allocation only by arithmetic that claims nothing
//! (`ptr::add` and `ptr::sub` claim that they stay within it). The results here are such pointers:
//! the kernel checks them, and no byte is read or written through them.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use crate::sys;

/// Returns the address `bytes` behind `at`, which may lie outside of the allocation of `at`.
pub(crate) fn address_at(at: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    at.map_addr(|address| address.saturating_add(bytes))
}

/// Extends a range to the whole base pages that it touches.
pub(crate) fn outward(at: NonNull<u8>, len: usize) -> (NonNull<u8>, usize) {
    let page = sys::page_size();
    let before = at.addr().get() % page;
    // Nothing is ever mapped at address 0.
    let start = at.map_addr(|at| NonZeroUsize::new(at.get() - before).unwrap_or(at));
    (start, (before + len).next_multiple_of(page))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The first page of a heap allocation begins before the allocation, and its last page ends
    /// behind it.
    #[test]
    fn pages_of_heap_memory_exceed_their_allocation() {
        let page = sys::page_size();
        let bytes = vec![0u8; 3 * page + 100].into_boxed_slice();
        let base = NonNull::from(&bytes[..]).cast::<u8>();
        for skip in [0, 1, 17, page - 1, page + 1] {
            // SAFETY: within the allocation.
            let at = unsafe { base.add(skip) };
            for len in [0, 1, page, 2 * page - 5] {
                let (start, whole) = outward(at, len);
                let (from, to) = (at.addr().get(), at.addr().get() + len);
                let (start, end) = (start.addr().get(), address_at(start, whole).addr().get());
                assert!(start.is_multiple_of(page) && end.is_multiple_of(page));
                assert!(start <= from && from - start < page);
                assert!(end >= to && end - to < page);
            }
        }
    }
}
