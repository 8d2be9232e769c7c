//! *Process-wide slices* (L4): what stands behind `kvmem/compat/gslice.h`.
//!
//! As GLib's, they give no status: a block of no bytes is NULL, and if there is no memory the
//! process ends.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::process::abort;
use std::ptr::{self, NonNull};

use kvmem::slab::SlabAllocator;

use crate::call::size;
use crate::slice::check_link;

/// The allocator of this process.
#[inline(always)]
fn slices() -> &'static SlabAllocator {
    match SlabAllocator::get() {
        Ok(slices) => slices,
        Err(error) => give_up(&error),
    }
}

#[cold]
#[inline(never)]
fn give_up(why: &dyn std::fmt::Display) -> ! {
    eprintln!("kvmem: {why}");
    abort()
}

/// Runs a call; a defect ends the process, since there is no status to say it by.
#[inline(always)]
fn run<T>(call: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    catch_unwind(call).unwrap_or_else(|_| abort())
}

/// A block of the process's allocator, not initialized, at a multiple of 16; of 0 bytes: NULL. Ends
/// the process if there is no memory. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_alloc(bytes: u64) -> *mut c_void {
    run(|| match slices().alloc(size(bytes)) {
        Ok(block) => block.as_ptr().cast(),
        Err(_) if bytes == 0 => ptr::null_mut(),
        Err(error) => give_up(&error),
    })
}

/// As kvmem_gslice_alloc, all bytes zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_alloc0(bytes: u64) -> *mut c_void {
    run(|| match slices().alloc_zeroed(size(bytes)) {
        Ok(block) => block.as_ptr().cast(),
        Err(_) if bytes == 0 => ptr::null_mut(),
        Err(error) => give_up(&error),
    })
}

/// As kvmem_gslice_alloc, with a copy of the bytes at `data`; NULL if there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_copy(bytes: u64, data: *const c_void) -> *mut c_void {
    // SAFETY: the promise of this function.
    let copy = unsafe { kvmem_gslice_alloc(bytes) };
    if !copy.is_null() && !data.is_null() {
        // SAFETY: the block is new and has so many bytes; that `data` has is the caller's promise.
        unsafe { ptr::copy_nonoverlapping(data.cast::<u8>(), copy.cast::<u8>(), size(bytes)) };
    }
    copy
}

/// Frees a block of the process's allocator; NULL is none. Otherwise as kvmem_slice_free. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_free1(bytes: u64, block: *mut c_void) {
    run(|| {
        if let Some(block) = NonNull::new(block.cast::<u8>()) {
            // SAFETY: the caller's promise.
            unsafe { slices().free(block, size(bytes)) };
        }
    });
}

/// Frees a chain of blocks of the process's allocator; see kvmem_slice_free_chain. Ends the process
/// if the link lies outside of the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_free_chain_with_offset(
    bytes: u64,
    first: *mut c_void,
    next_offset: u64,
) {
    run(|| {
        let Some(first) = NonNull::new(first.cast::<u8>()) else { return };
        if let Err(fail) = check_link(bytes, next_offset) {
            give_up(&fail);
        }
        // SAFETY: the caller's promise.
        unsafe { slices().free_chain(Some(first), size(bytes), size(next_offset)) };
    });
}
