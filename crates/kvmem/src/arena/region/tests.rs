//! Regions over heap memory. Miri runs these tests: all pointers stay within what they may reach.

use std::ptr::NonNull;

use super::{Advice, Region};
use crate::arena::{ArenaError, Populate, ProgressOptions};

/// Makes a region over `len` heap bytes that begin `skip` bytes behind the start of their
/// allocation, and end where it ends.
fn region(skip: usize, len: usize) -> Region {
    let bytes = Box::leak(vec![7u8; skip + len].into_boxed_slice());
    let base = NonNull::from(&mut *bytes).cast::<u8>();

    /// Frees the bytes with the region.
    struct Owner(NonNull<u8>, usize);
    // SAFETY: the value is the only owner of the bytes, and any thread may free them.
    unsafe impl Send for Owner {}
    // SAFETY: a shared reference gives no access.
    unsafe impl Sync for Owner {}
    impl Drop for Owner {
        fn drop(&mut self) {
            let bytes = NonNull::slice_from_raw_parts(self.0, self.1);
            // SAFETY: they were leaked from a box of this length, and the region is gone.
            drop(unsafe { Box::from_raw(bytes.as_ptr()) });
        }
    }
    let owner = Owner(base, skip + len);
    // SAFETY: `skip` lies within the bytes, which the owner keeps until the region is dropped; no
    // other code has a reference to them.
    unsafe { Region::from_raw(base.add(skip), len, owner) }.expect("a valid range")
}

#[test]
fn heap_memory_is_measured_and_populated_page_by_page() {
    for (skip, len) in [(0, 1), (1, 100), (17, 9000), (4095, 4097), (0, 3 << 12)] {
        let region = region(skip, len);
        assert_eq!((region.len(), region.receipt().backing), (len, None));
        // Without a kernel, every measuring fails; with one, it finds the pages.
        if let Ok(found) = region.residency(..) {
            assert!(found.len_bytes >= len as u64, "{found:?}");
            assert!(region.is_resident(..).is_ok() && region.receipt_now().is_ok());
        }
        let glance = region.glance(0..len);
        assert!(glance.is_ok_and(|bytes| bytes <= len as u64) || cfg!(miri));
        let threads = Populate::threads(2);
        let populated = region.populate(.., threads, &ProgressOptions::new());
        assert!(populated.is_ok() || cfg!(miri), "{populated:?}");
        // SAFETY: no other code writes to the bytes.
        assert!(unsafe { region.bytes() }.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn parts_of_heap_memory_are_disjoint_and_keep_their_owner() {
    let (left, right) = region(5, 10_000).split_at(4000).expect("within the region");
    assert_eq!(left.base().addr().get() + 4000, right.base().addr().get());
    drop(left);
    let parts = right.split(1000).expect("a size above 0");
    assert_eq!(parts.len(), 6);
    for (number, part) in parts.iter().enumerate() {
        let slice = part.slice(..).expect("the whole");
        // SAFETY: the parts are disjoint, and only this thread has them.
        unsafe { slice.as_mut_bytes() }.fill(number as u8);
        let end = part.slice(part.len()..).expect("an empty range at the end");
        assert!(end.is_empty() && end.as_ptr() == slice.as_ptr_range().end);
    }
    for (number, part) in parts.iter().enumerate() {
        // SAFETY: no thread writes meanwhile.
        assert!(unsafe { part.bytes() }.iter().all(|byte| *byte == number as u8));
    }
}

#[test]
fn heap_memory_belongs_to_its_owner() {
    let mut region = region(3, 8192);
    assert!(matches!(region.discard(..0), Err(ArenaError::Misaligned { .. })));
    let page = crate::sys::page_size();
    let first = region.base().addr().get().next_multiple_of(page) - region.base().addr().get();
    let range = first..first;
    assert_eq!(region.discard(range.clone()), Err(ArenaError::Foreign { what: "discarding" }));
    assert_eq!(region.advise(range, Advice::Normal), Err(ArenaError::Foreign { what: "advice" }));
    assert!(region.as_mut_bytes().is_err() && region.fd().is_none());
    let pin = region.pin_pages();
    drop(region);
    drop(pin);
}
