//! *Span*: a range of addresses that is ours until it is dropped.
//!
//! The range is reserved in one piece, without access and without memory behind it; what it is to
//! consist of is put into it afterwards. So a region of several kinds of pages is contiguous, and
//! nothing else of the process can come to lie between them.
//!
//! ```text
//!   outer                base, a multiple of the alignment
//!     │ guard: no access │ usable                           │ guard │
//!     └ a page ──────────┴ len ─────────────────────────────┴───────┘
//! ```

use std::ptr::NonNull;

use super::diagnose::refused;
use super::{ArenaError, Call};
use crate::sys;

/// Addresses, reserved in one piece.
#[derive(Debug)]
pub(crate) struct Span {
    outer: NonNull<u8>,
    outer_len: usize,
    base: NonNull<u8>,
    len: usize,
    /// Whose addresses they are: a forked child has a copy of this value, but perhaps not of the
    /// range.
    process: u32,
}

// SAFETY: a span is a range of addresses; it does not touch what is there except to unmap it when
// dropped, once.
unsafe impl Send for Span {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Span {}

/// Gives a range back that is the caller's and not in use.
pub(crate) fn unmap(at: NonNull<u8>, len: usize) {
    // The kernel may refuse for want of memory for its own books, which passes. Beyond that nothing
    // can be done, and addresses without an owner do no harm.
    for _ in 0..3 {
        // SAFETY: the caller's promise: nobody uses the range.
        if unsafe { sys::munmap(at, len) }.is_ok() {
            return;
        }
    }
}

impl Span {
    /// Reserves `len` bytes of addresses, beginning at a multiple of `align`, with a page without
    /// access on either side if `guards` says so. `len` and `align` are multiples of the base
    /// page, `align` a power of two.
    pub(crate) fn reserve(len: usize, align: usize, guards: bool) -> Result<Span, ArenaError> {
        let page = sys::page_size();
        let guard = if guards { page } else { 0 };
        let slack = align - page;
        let most = isize::MAX as usize - slack - 2 * guard;
        if len > most {
            return Err(ArenaError::TooLarge { requested: len, most });
        }
        let whole = len + 2 * guard + slack;
        let at = sys::reserve(whole).map_err(|errno| refused(Call::Reserve, whole, errno))?;
        let head = (at.addr().get() + guard).next_multiple_of(align) - guard - at.addr().get();
        // SAFETY: `head ≤ slack`, so this and what follows it lie within the range.
        let outer = unsafe { at.add(head) };
        // SAFETY: as above.
        let (base, end) = unsafe { (outer.add(guard), outer.add(guard + len + guard)) };
        let tail = slack - head;
        if head > 0 {
            unmap(at, head);
        }
        if tail > 0 {
            unmap(end, tail);
        }
        Ok(Span { outer, outer_len: len + 2 * guard, base, len, process: sys::process_id() })
    }

    /// The first usable address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Usable bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of addresses held, guards included.
    pub(crate) fn outer_len(&self) -> usize {
        self.outer_len
    }

    /// The address of an offset, which must not be greater than the length.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.len);
        // SAFETY: within the range, or one past its end.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // In a forked child the range is absent (`dont_fork`), and what the child has mapped since
        // may lie there.
        if self.process == sys::process_id() {
            unmap(self.outer, self.outer_len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_aligned_and_guarded() {
        let page = sys::page_size();
        for align in [page, 2 << 20, 1 << 30] {
            for guards in [false, true] {
                let span = Span::reserve(3 * page, align, guards).expect("addresses are plenty");
                assert_eq!(span.base().addr().get() % align, 0);
                assert_eq!(span.outer_len(), 3 * page + if guards { 2 * page } else { 0 });
            }
        }
    }

    #[test]
    fn sizes_beyond_all_addresses_are_refused() {
        for len in [usize::MAX, isize::MAX as usize, isize::MAX as usize - sys::page_size()] {
            assert!(
                matches!(Span::reserve(len, 1 << 30, true), Err(ArenaError::TooLarge { .. })),
                "{len}"
            );
        }
        let most = (isize::MAX as usize - (4 << 30)) & !4095;
        assert!(matches!(
            Span::reserve(most, 4096, false),
            Err(ArenaError::Refused { call: Call::Reserve, .. })
        ));
    }
}
