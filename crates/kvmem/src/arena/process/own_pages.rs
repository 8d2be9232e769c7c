//! *Own pages*: a mapping for one request alone.

use std::ptr::NonNull;

use crate::sys::{self, Errno};

/// Whole pages with one owner; dropping the owner unmaps them.
#[derive(Debug)]
pub(super) struct OwnPages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its pages; any thread may use or unmap them.
unsafe impl Send for OwnPages {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for OwnPages {}

impl OwnPages {
    /// Maps at least `size` ≥ 1 bytes at a multiple of `align`, a power of two: whole pages, all
    /// zero.
    pub(super) fn new(size: usize, align: usize) -> Result<OwnPages, Errno> {
        let page = sys::page_size();
        let len = size.checked_next_multiple_of(page).ok_or(Errno::ENOMEM)?;
        // The kernel aligns to pages only. For larger alignments, map enough to contain an aligned
        // start, and unmap the rest.
        let slack = align.saturating_sub(page);
        let mapped = len.checked_add(slack).ok_or(Errno::ENOMEM)?;
        let mut whole = map(mapped)?;
        let before = whole.base.addr().get().wrapping_neg() & (align - 1);
        // After each step `whole` is exactly the part that is still mapped, which an early return
        // unmaps.
        whole.cut_front(before)?;
        whole.cut_back(whole.len - len)?;
        Ok(whole)
    }

    fn cut_front(&mut self, len: usize) -> Result<(), Errno> {
        if len > 0 {
            // SAFETY: `len` < `self.len` bytes are whole pages at the front of this value's pages;
            // no other code knows their addresses.
            unsafe { sys::munmap(self.base, len) }?;
            // SAFETY: `len < self.len`: the address lies within the mapping.
            self.base = unsafe { self.base.add(len) };
            self.len -= len;
        }
        Ok(())
    }

    fn cut_back(&mut self, len: usize) -> Result<(), Errno> {
        if len > 0 {
            self.len -= len;
            // SAFETY: the last `len` bytes are whole pages of this value; no other code knows their
            // addresses.
            let cut = unsafe { sys::munmap(self.base.add(self.len), len) };
            if cut.is_err() {
                self.len += len;
            }
            cut?;
        }
        Ok(())
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Unmaps the pages; returns them with the error if the kernel's call fails.
    pub(super) fn unmap(self) -> Result<(), (OwnPages, Errno)> {
        // SAFETY: the value owns the pages, and `self` is not used again after they are unmapped.
        match unsafe { sys::munmap(self.base, self.len) } {
            Ok(()) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }
}

fn map(len: usize) -> Result<OwnPages, Errno> {
    sys::map_anonymous(len).map(|base| OwnPages { base, len })
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        // SAFETY: the value owns the pages, and is being dropped. If the call fails because the
        // kernel lacks memory to split its mapping, the pages stay mapped: no caller is left to
        // receive the error.
        let _ = unsafe { sys::munmap(self.base, self.len) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pages_have_every_alignment_and_are_writable() {
        for shift in 0..=30 {
            let pages = OwnPages::new(5000, 1 << shift).unwrap();
            assert_eq!(pages.base().addr().get() % (1 << shift), 0);
            assert_eq!(pages.len(), 5000usize.next_multiple_of(sys::page_size()));
            // SAFETY: only this test has the pages, and they are mapped for writing.
            unsafe { pages.base().write_bytes(1, pages.len()) };
            pages.unmap().unwrap();
        }
    }

    #[test]
    fn impossible_mappings_fail() {
        for (size, align) in [
            (usize::MAX, 1),
            (isize::MAX as usize, 1),
            (1, 1 << 63),
            (isize::MAX as usize, 1 << 63),
        ] {
            assert_eq!(
                OwnPages::new(size, align).map(drop),
                Err(Errno::ENOMEM),
                "{size} at {align}"
            );
        }
    }
}
