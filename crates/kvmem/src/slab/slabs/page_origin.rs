//! *Page origin*: where spans of pages come from: the kernel, a region, or reserved addresses.

use std::ops::Range;
use std::ptr::NonNull;

use super::page_span::SPAN;
use crate::arena::{ExclusiveRegion, Region};
use crate::sys;

/// Where spans come from.
pub(crate) enum Origin {
    /// From the kernel, as needed.
    System,
    /// From a region, which the source keeps alive.
    Region(Region),
    /// From a range of addresses that is reserved once and made accessible span by span. One
    /// comparison shows whether an address is within it.
    Reserved(Reserve),
}

impl Origin {
    /// Uses all of a region that no other code can reach.
    pub(crate) fn region(region: ExclusiveRegion) -> Origin {
        Origin::Region(region.into_region())
    }

    /// Makes one more span of zeroed pages; `None` if there are no more. The spans of a region are
    /// all there from the beginning.
    pub(crate) fn make_span(&mut self) -> Option<NonNull<u8>> {
        match self {
            Origin::System => map_span(),
            Origin::Region(_) => None,
            Origin::Reserved(reserve) => reserve.open_span(),
        }
    }

    /// Returns the parts of the region that lie in different spans: the address of each span and
    /// the range of addresses that exist. Empty unless the pages come from a region.
    pub(crate) fn parts(&self) -> Vec<(NonNull<u8>, Range<usize>)> {
        let Origin::Region(region) = self else { return Vec::new() };
        let range = region.base().addr().get()..region.base().addr().get() + region.len();
        let span = |at: usize| {
            // The span may begin before the region.
            let base = region.base().as_ptr().wrapping_add(at.wrapping_sub(range.start));
            NonNull::new(base).map(|base| (base, range.clone()))
        };
        (range.start & !(SPAN - 1)..range.end).step_by(SPAN).filter_map(span).collect()
    }

    /// Returns the pages of a span to the kernel, if that is possible; otherwise they stay
    /// resident. The pages of a hugetlb pool and of a registered region do.
    ///
    /// # Safety
    ///
    /// `base` is a span of this origin, `range` lies within its part of the origin, in whole pages,
    /// and no code relies on the content of these pages.
    pub(crate) unsafe fn discard(&self, base: NonNull<u8>, range: Range<usize>) {
        match self {
            Origin::Region(region) => {
                let from = base.addr().get() + range.start - region.base().addr().get();
                let _ = region.discard(from..from + range.len());
            }
            Origin::System | Origin::Reserved(_) => {
                // SAFETY: the caller promises that the range lies within the mapped span.
                let at = unsafe { base.add(range.start) };
                // SAFETY: the pages are mapped, private and anonymous. After this they read as
                // zero, and the caller promises that no code relies on their content.
                let _ = unsafe { sys::madvise(at, range.len(), libc::MADV_DONTNEED) };
            }
        }
    }

    /// Unmaps a span, if spans of this origin are mapped one by one. Returns whether it did.
    ///
    /// # Safety
    ///
    /// The span came from [`make_span`](Self::make_span) of this origin, and no code uses any of
    /// it, now or later.
    pub(crate) unsafe fn unmap_span(&self, base: NonNull<u8>) -> bool {
        match self {
            // SAFETY: `map_span` mapped it. That it is not used is this function's promise.
            Origin::System => unsafe { unmap_span(base) }.is_ok(),
            Origin::Region(_) | Origin::Reserved(_) => false,
        }
    }

    /// Returns whether the pages are mapped: by default, a forked child does not inherit a region.
    /// Makes a system call.
    pub(crate) fn is_mapped(&self) -> bool {
        match self {
            Origin::Region(region) => {
                let base = region.base();
                let page = base.as_ptr().map_addr(|at| at - at % sys::page_size());
                let mut resident = [0];
                sys::mincore(NonNull::new(page).unwrap_or(base), 1, &mut resident)
                    != Err(sys::Errno::ENOMEM)
            }
            Origin::System | Origin::Reserved(_) => true,
        }
    }
}

/// A reserved range of addresses without pages.
pub(crate) struct Reserve {
    at: NonNull<u8>,
    len: usize,
    /// The address of the first span, and the number of bytes from there on that are accessible.
    first: usize,
    opened: usize,
}

impl Reserve {
    /// Reserves as many addresses as possible, up to `max` bytes. Returns `None` if fewer than 64
    /// MiB are available.
    pub(crate) fn new(max: usize) -> Option<Reserve> {
        let mut len = max;
        while len >= 64 << 20 {
            if let Ok(at) = sys::reserve(len) {
                return Some(Reserve {
                    at,
                    len,
                    first: at.addr().get().next_multiple_of(SPAN),
                    opened: 0,
                });
            }
            len /= 2;
        }
        None
    }

    /// Returns the addresses that spans can have.
    pub(crate) fn range(&self) -> Range<usize> {
        let end = self.at.addr().get() + self.len;
        self.first..self.first + (end - self.first) / SPAN * SPAN
    }

    /// Makes the next span accessible; `None` if all are, or the system has no memory.
    fn open_span(&mut self) -> Option<NonNull<u8>> {
        let range = self.range();
        let at = range.start + self.opened;
        if at >= range.end {
            return None;
        }
        // SAFETY: `at` is within the reserved range, which is one mapping.
        let base = unsafe { self.at.add(at - self.at.addr().get()) };
        // SAFETY: the span is part of the reserve's own mapping and was never accessible, so no
        // code refers to it.
        unsafe { sys::protect(base, SPAN) }.ok()?;
        self.opened += SPAN;
        Some(base)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: the reserve owns the mapping. The page source that owns the reserve ends after
        // the last user of its spans (see `PageSource`).
        let _ = unsafe { sys::munmap(self.at, self.len) };
    }
}

/// Unmaps a span that [`map_span`] mapped.
///
/// # Safety
/// The span is the caller's, and no code uses any of it.
#[cfg(not(miri))]
unsafe fn unmap_span(span: NonNull<u8>) -> Result<(), sys::Errno> {
    // SAFETY: the caller promises that it owns the mapped span and that no code uses it.
    unsafe { sys::munmap(span, SPAN) }
}

/// Miri cannot unmap parts of a mapping and does not align mappings, so spans come from the heap.
#[cfg(miri)]
const SPAN_LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(SPAN, SPAN) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// Frees a span that [`map_span`] allocated.
///
/// # Safety
/// The span is the caller's, and no code uses any of it.
#[cfg(miri)]
unsafe fn unmap_span(span: NonNull<u8>) -> Result<(), sys::Errno> {
    // SAFETY: `map_span` allocated it with this layout; the caller promises that it is unused.
    unsafe { std::alloc::dealloc(span.as_ptr(), SPAN_LAYOUT) };
    Ok(())
}

#[cfg(miri)]
fn map_span() -> Option<NonNull<u8>> {
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(SPAN_LAYOUT) })
}

/// Maps `SPAN` bytes at a multiple of `SPAN`.
#[cfg(not(miri))]
fn map_span() -> Option<NonNull<u8>> {
    let first = sys::map_anonymous(SPAN).ok()?;
    if first.addr().get().is_multiple_of(SPAN) {
        return Some(first);
    }
    // SAFETY: the mapping is new, so no code refers to it.
    let _ = unsafe { sys::munmap(first, SPAN) };
    let wide = sys::map_anonymous(2 * SPAN).ok()?;
    let before = wide.addr().get().wrapping_neg() % SPAN;
    // SAFETY: `before` < SPAN, so the sum is within the mapping.
    let at = unsafe { wide.add(before) };
    if before > 0 {
        // SAFETY: the front of the new mapping, in whole pages; no code refers to it.
        let _ = unsafe { sys::munmap(wide, before) };
    }
    // SAFETY: the back of the new mapping, in whole pages: `before + SPAN` < `2 * SPAN`.
    let _ = unsafe { sys::munmap(at.add(SPAN), SPAN - before) };
    Some(at)
}
