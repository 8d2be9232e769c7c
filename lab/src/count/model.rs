//! *Model*: the model of the published allocator behind the functions of a loaded contender.
//!
//! Its operations then cost a call through a pointer and a handle that is moved as bytes, as those
//! of the class for C++ do.

use std::ffi::c_void;

use crate::bench::contender::binned::Binned;
use crate::bench::contender::{Contender, RangeHandle, Space};

use super::loaded::{Functions, HANDLE_WORDS, LoadedHandle};

/// The name of this contender.
pub(crate) const NAME: &str = "model";

type Handle = <Binned as Contender>::Handle;

const _: () = assert!(size_of::<Handle>() <= HANDLE_WORDS * 8 && align_of::<Handle>() <= 8);

pub(crate) const MODEL: Functions = Functions { create, destroy, allocate, free, size };

extern "C" fn create(capacity: u64, max_live: u64) -> *mut c_void {
    let space = Space { capacity, max_live: max_live as usize };
    Binned::create(space)
        .map_or(std::ptr::null_mut(), |space| Box::into_raw(Box::new(space)).cast())
}

unsafe extern "C" fn destroy(space: *mut c_void) {
    // SAFETY: `create` made the space, and the caller does not use it again.
    drop(unsafe { Box::from_raw(space.cast::<Binned>()) });
}

unsafe extern "C" fn allocate(space: *mut c_void, size: u64, handle: *mut LoadedHandle) -> bool {
    // SAFETY: the space exists, and threads may share it.
    let space = unsafe { &*space.cast::<Binned>() };
    let Some(range) = space.allocate(size) else { return false };
    // SAFETY: the caller has room for a handle, which holds this type.
    unsafe { handle.cast::<Handle>().write(range) };
    true
}

unsafe extern "C" fn free(handle: *mut LoadedHandle) {
    // SAFETY: `allocate` wrote the handle, and the caller frees it once.
    unsafe { handle.cast::<Handle>().drop_in_place() };
}

unsafe extern "C" fn size(handle: *const LoadedHandle) -> u64 {
    // SAFETY: `allocate` wrote the handle, which is not yet freed.
    unsafe { &*handle.cast::<Handle>() }.size()
}
