//! *Own pages*: pages for one request alone.

use std::ptr::NonNull;

use crate::sys::{self, Errno};

/// Whole pages, mapped for one owner, unmapped with it.
#[derive(Debug)]
pub(super) struct OwnPages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its pages; the kernel does not mind which thread uses or unmaps them.
unsafe impl Send for OwnPages {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for OwnPages {}

impl OwnPages {
    /// At least `size` ≥ 1 bytes at a multiple of `align`, a power of two: whole pages, all zero.
    pub(super) fn new(size: usize, align: usize) -> Result<OwnPages, Errno> {
        let page = sys::page_size();
        let len = size.checked_next_multiple_of(page).ok_or(Errno::ENOMEM)?;
        // The kernel aligns to pages only: for more, so much is mapped that an aligned start is in
        // it, and the rest given back.
        let slack = align.saturating_sub(page);
        let mapped = len.checked_add(slack).ok_or(Errno::ENOMEM)?;
        let mut whole = map(mapped)?;
        let before = whole.base.addr().get().wrapping_neg() & (align - 1);
        // Each step leaves `whole` what is still mapped, so that an early return unmaps just that.
        whole.cut_front(before)?;
        whole.cut_back(whole.len - len)?;
        Ok(whole)
    }

    fn cut_front(&mut self, len: usize) -> Result<(), Errno> {
        if len > 0 {
            // SAFETY: `len` < `self.len` whole pages at the front of pages that are ours; nobody
            // has been told of them.
            unsafe { sys::munmap(self.base, len) }?;
            // SAFETY: within the pages.
            self.base = unsafe { self.base.add(len) };
            self.len -= len;
        }
        Ok(())
    }

    fn cut_back(&mut self, len: usize) -> Result<(), Errno> {
        if len > 0 {
            self.len -= len;
            // SAFETY: the last `len` bytes, whole pages, of pages that are ours; nobody has been
            // told of them.
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

    /// Unmaps, and says so if the kernel would not.
    #[cfg(not(loom))]
    pub(super) fn unmap(self) -> Result<(), (OwnPages, Errno)> {
        // SAFETY: the pages are ours, and `self` is not used again if they are gone.
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
        // SAFETY: the pages are ours, and the owner is going. If the kernel will not (it lacks
        // memory for the book-keeping of a split), they stay mapped: nobody is left to be
        // told.
        let _ = unsafe { sys::munmap(self.base, self.len) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_holds_and_all_of_it_can_be_written() {
        for shift in 0..=30 {
            let pages = OwnPages::new(5000, 1 << shift).unwrap();
            assert_eq!(pages.base().addr().get() % (1 << shift), 0);
            assert_eq!(pages.len(), 5000usize.next_multiple_of(sys::page_size()));
            // SAFETY: the pages are ours alone, and mapped for writing.
            unsafe { pages.base().write_bytes(1, pages.len()) };
            pages.unmap().unwrap();
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
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
