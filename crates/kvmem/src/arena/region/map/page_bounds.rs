//! *Page bounds*: the whole pages that a range of bytes touches.

use std::ptr::NonNull;

use crate::sys;

/// Extends a range to whole base pages.
pub(crate) fn outward(at: NonNull<u8>, len: usize) -> (NonNull<u8>, usize) {
    let page = sys::page_size();
    let before = at.addr().get() % page;
    // SAFETY: pages are mapped whole, so the beginning of the page belongs to the same memory.
    (unsafe { at.sub(before) }, (before + len).next_multiple_of(page))
}
