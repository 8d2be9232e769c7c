//! *Address span*: a reserved range of addresses.
//!
//! The range is reserved at once, without access and without memory; pages are mapped into it
//! afterwards. A region of several kinds of pages is therefore contiguous, and no other mapping of
//! the process can lie between its segments.
//!
//! ```text
//!   outer                base, a multiple of the alignment
//!     │ guard: no access │ usable                           │ guard │
//!     └ a page ──────────┴ len ─────────────────────────────┴───────┘
//! ```

use std::ptr::NonNull;

use crate::arena::error::call_failed;
use crate::arena::pages::address_at;
use crate::arena::{ArenaError, Call};
use crate::sys;

/// Reserved addresses; dropping the value unmaps them.
#[derive(Debug)]
pub(crate) struct AddressSpan {
    outer: NonNull<u8>,
    outer_len: usize,
    base: NonNull<u8>,
    len: usize,
    /// The process that owns the addresses: a forked child has a copy of this value, but perhaps
    /// not the mapping.
    process: u32,
}

// SAFETY: a span is a range of addresses: it reads and writes no byte of them. Unmapping is a call
// of the kernel that any thread may make, once, because dropping takes the value.
unsafe impl Send for AddressSpan {}
// SAFETY: a shared reference gives addresses and lengths, which never change.
unsafe impl Sync for AddressSpan {}

/// Unmaps a range.
///
/// # Safety
/// The range consists of whole pages that only the caller's code has mapped, and no code uses a
/// pointer or reference into it from now on.
pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // The call can fail while the kernel lacks memory for its own structures, which passes. After
    // three failures the addresses leak, which is harmless.
    for _ in 0..3 {
        // SAFETY: the two conditions of this function are those of the call. After a failure the
        // range is still mapped and still the caller's, so they hold again.
        if unsafe { sys::munmap(at, len) }.is_ok() {
            return;
        }
    }
}

impl AddressSpan {
    /// Reserves `len` bytes of addresses beginning at a multiple of `align`; `guards` adds an
    /// inaccessible page on either side. `len` and `align` are multiples of the base page, `align`
    /// a power of two.
    pub(crate) fn reserve(
        len: usize,
        align: usize,
        guards: bool,
    ) -> Result<AddressSpan, ArenaError> {
        let page = sys::page_size();
        let guard = if guards { page } else { 0 };
        let slack = align - page;
        let max = isize::MAX as usize - slack - 2 * guard;
        if len > max {
            return Err(ArenaError::TooLarge { requested: len, max });
        }
        let whole = len + 2 * guard + slack;
        let at = sys::reserve(whole).map_err(|errno| call_failed(Call::Reserve, whole, errno))?;
        let head = (at.addr().get() + guard).next_multiple_of(align) - guard - at.addr().get();
        // SAFETY: one mapping of `whole` ≤ `isize::MAX` bytes begins at `at`, and `head ≤ slack`,
        // so the address lies within it.
        let outer = unsafe { at.add(head) };
        // SAFETY: `head + guard + len + guard ≤ whole`: both addresses lie within the same mapping,
        // or one past its end.
        let (base, end) = unsafe { (outer.add(guard), outer.add(guard + len + guard)) };
        let tail = slack - head;
        if head > 0 {
            // SAFETY: `reserve` mapped the range just now; `head` is its first part, whole pages
            // that are not part of the span.
            unsafe { unmap(at, head) };
        }
        if tail > 0 {
            // SAFETY: the same range; `tail` is its last part, behind the span.
            unsafe { unmap(end, tail) };
        }
        Ok(AddressSpan { outer, outer_len: len + 2 * guard, base, len, process: sys::process_id() })
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

    /// The address of an offset, for calls of the kernel.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.len);
        address_at(self.base, offset)
    }
}

impl Drop for AddressSpan {
    fn drop(&mut self) {
        // In a forked child the range is absent (`dont_fork`), and what the child has mapped since
        // may lie there.
        if self.process == sys::process_id() {
            // SAFETY: the value owns the addresses, and this is its only drop. Pointers into the
            // range come from borrows of the value, or from code with a promise of its own.
            unsafe { unmap(self.outer, self.outer_len) };
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn spans_are_aligned_and_guarded() {
        let page = sys::page_size();
        for align in [page, 2 << 20, 1 << 30] {
            for guards in [false, true] {
                let span =
                    AddressSpan::reserve(3 * page, align, guards).expect("addresses are plenty");
                assert_eq!(span.base().addr().get() % align, 0);
                assert_eq!(span.outer_len(), 3 * page + if guards { 2 * page } else { 0 });
            }
        }
    }

    #[test]
    fn sizes_beyond_all_addresses_fail() {
        for len in [usize::MAX, isize::MAX as usize, isize::MAX as usize - sys::page_size()] {
            assert!(
                matches!(
                    AddressSpan::reserve(len, 1 << 30, true),
                    Err(ArenaError::TooLarge { .. })
                ),
                "{len}"
            );
        }
        let max = (isize::MAX as usize - (4 << 30)) & !4095;
        assert!(matches!(
            AddressSpan::reserve(max, 4096, false),
            Err(ArenaError::CallFailed { call: Call::Reserve, .. })
        ));
    }
}
