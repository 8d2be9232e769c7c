//! *Kvmem*: the library. It has no slab layer yet, so it is absent.

use super::Heap;

/// There is none.
pub(super) enum Kvmem {}

impl Heap for Kvmem {
    fn create() -> Result<Self, String> {
        Err("this version of the library has no slab layer".to_owned())
    }

    fn alloc(&self, _size: usize) -> *mut u8 {
        match *self {}
    }

    unsafe fn free(&self, _block: *mut u8, _size: usize) {
        match *self {}
    }
}
