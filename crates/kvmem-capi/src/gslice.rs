//! *Process-wide slices* (L4): the functions behind `kvmem/compat/gslice.h`.
//!
//! Like GLib's functions, they return no status: a block of 0 bytes is NULL, and the process aborts
//! if there is no memory.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::process::abort;
use std::ptr::{self, NonNull};

use kvmem::slab::SlabAllocator;

use crate::call::size;
use crate::slab::check_link;

/// Returns the allocator of this process.
#[inline(always)]
fn process_allocator() -> &'static SlabAllocator {
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

/// Returns the size of a block that is freed as one of `bytes` bytes. No block has 0 bytes: GLib's
/// macros since 2.88 allocate 1 byte for a type without members, and free it with `sizeof`, 0.
#[inline(always)]
fn freed_size(bytes: u64) -> usize {
    size(bytes).max(1)
}

/// Runs a call. A panic aborts the process, since there is no status to report it.
#[inline(always)]
fn run<T>(call: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    catch_unwind(call).unwrap_or_else(|_| abort())
}

/// Allocates a block of the process's allocator, not initialized and aligned to 16 bytes; NULL for
/// 0 bytes. Aborts the process if there is no memory. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_alloc(bytes: u64) -> *mut c_void {
    run(|| match process_allocator().allocate(size(bytes)) {
        Ok(block) => block.as_ptr().cast(),
        Err(_) if bytes == 0 => ptr::null_mut(),
        Err(error) => give_up(&error),
    })
}

/// Allocates a block of the process's allocator, all zero; NULL for 0 bytes. Aborts the process if
/// there is no memory. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_alloc0(bytes: u64) -> *mut c_void {
    run(|| match process_allocator().allocate_zeroed(size(bytes)) {
        Ok(block) => block.as_ptr().cast(),
        Err(_) if bytes == 0 => ptr::null_mut(),
        Err(error) => give_up(&error),
    })
}

/// Allocates a block of the process's allocator with a copy of the bytes at `data`; NULL for 0
/// bytes. Aborts the process if there is no memory. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_copy(bytes: u64, data: *const c_void) -> *mut c_void {
    // SAFETY: the function takes no pointer and looks up no object, so it needs no promise.
    let copy = unsafe { kvmem_gslice_alloc(bytes) };
    if !copy.is_null() && !data.is_null() {
        // SAFETY: the block has `bytes` bytes, and so has `data`, by promise 1 of the C caller. The
        // block is new, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(data.cast::<u8>(), copy.cast::<u8>(), size(bytes)) };
    }
    copy
}

/// Frees a block of the process's allocator, under the conditions of kvmem_slab_allocator_free;
/// NULL does nothing. 0 bytes count as 1: g_slice_new of GLib 2.88 and later allocates 1 byte for a
/// type without members, and g_slice_free frees it with 0. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_free1(bytes: u64, block: *mut c_void) {
    run(|| {
        if let Some(block) = NonNull::new(block.cast::<u8>()) {
            // SAFETY: promise 4 of the C caller: a live block of the process's allocator and of
            // this size, no longer used. Blocks of 0 bytes do not exist, one of 1 byte does.
            unsafe { process_allocator().free(block, freed_size(bytes)) };
        }
    });
}

/// Frees a chain of blocks of the process's allocator; see kvmem_slab_allocator_free_chain. Aborts
/// the process if the link lies outside of the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_gslice_free_chain_with_offset(
    bytes: u64,
    first: *mut c_void,
    next_offset: u64,
) {
    run(|| {
        let Some(first) = NonNull::new(first.cast::<u8>()) else { return };
        if let Err(error) = check_link(bytes, next_offset) {
            give_up(&error);
        }
        // SAFETY: promise 4 of the C caller: live blocks of the process's allocator and of this
        // size, no longer used, each with the next one's address at the offset. The link lies
        // within the block.
        unsafe { process_allocator().free_chain(Some(first), size(bytes), size(next_offset)) };
    });
}
