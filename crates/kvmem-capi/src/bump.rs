//! *Bump arena* (L1): bytes allocated one after another, and freed all at once.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::{BumpArena, Memory, Region};

use crate::call::{destroy, guard, on, out, size};
use crate::fork::ForkScope;
use crate::promise::ObjectPromise;
use crate::region::kvmem_region;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// Allocates the bytes of a region one after another (layer 1). Owned by the caller:
/// kvmem_bump_arena_destroy. Any thread, several at once, without a lock.
pub struct kvmem_bump_arena {
    _opaque: [u8; 0],
}

object!(kvmem_bump_arena, BumpArena<Bytes>, Bump, |arena| ForkScope::IfMapped(
    arena.base().addr().get()
));

/// A region that other objects may share.
pub struct Bytes(Arc<Region>);

// SAFETY: what `Memory` requires holds for the region, which lives as long as this value: 1. its
// address and length do not change; 2. its bytes are one allocation; 3. they stay mapped, since a
// region is unmapped with its last owner, and this value is one.
unsafe impl Memory for Bytes {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Makes an arena on a whole region. The region stays the caller's and may be destroyed before the
/// arena, which keeps the memory mapped. No byte is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_create(
    region: *const kvmem_region,
    out_arena: *mut *mut kvmem_bump_arena,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_arena`.
        let made = unsafe { out(out_arena, "out_arena") }?;
        let region = Arc::clone(kvmem_region::table().get(&promise, region)?);
        made.put(kvmem_bump_arena::table().insert(BumpArena::new(Bytes(region)))?);
        Ok(())
    })
}

/// Allocates `bytes` bytes at a multiple of `align`, a power of two. Their contents are those of
/// the memory, or those left before a reset. They are valid until the arena is reset or destroyed.
/// A failure with KVMEM_ERR_OUT_OF_SPACE costs some nanoseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_allocate(
    arena: *const kvmem_bump_arena,
    bytes: u64,
    align: u64,
    out_data: *mut *mut c_void,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, arena, |arena| {
        // SAFETY: promise 1 of the C caller, for `out_data`.
        let data = unsafe { out(out_data, "out_data") }?;
        data.put(arena.allocate_bytes(size(bytes), size(align))?.as_ptr().cast());
        Ok(())
    })
}

/// Returns whether an address lies in the arena's memory, allocated or not: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_owns(
    arena: *const kvmem_bump_arena,
    address: *const c_void,
    out_owns: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, arena, |arena| {
        // SAFETY: promise 1 of the C caller, for `out_owns`.
        let place = unsafe { out(out_owns, "out_owns") }?;
        place.put(u32::from(arena.owns(address.cast())));
        Ok(())
    })
}

/// Statistics of an arena. `used_bytes + remaining_bytes == capacity_bytes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_bump_arena_stats {
    /// The first address.
    pub data: *mut c_void,
    /// Bytes of the memory.
    pub capacity_bytes: u64,
    /// Bytes allocated, including the padding before them.
    pub used_bytes: u64,
    /// Bytes that remain.
    pub remaining_bytes: u64,
}

/// Reads the statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_get_stats(
    arena: *const kvmem_bump_arena,
    out_stats: *mut kvmem_bump_arena_stats,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, arena, |arena| {
        let stats = arena.stats();
        // SAFETY: promise 1 of the C caller, for `out_stats`.
        let place = unsafe { out(out_stats, "out_stats") }?;
        place.put(kvmem_bump_arena_stats {
            data: arena.base().as_ptr().cast(),
            capacity_bytes: stats.capacity as u64,
            used_bytes: stats.used as u64,
            remaining_bytes: stats.remaining as u64,
        });
        Ok(())
    })
}

/// Frees all allocations at once. No other thread may use the arena meanwhile, and the program must
/// not use the allocated bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_reset(arena: *mut kvmem_bump_arena) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        kvmem_bump_arena::table().exclusive(&mut promise, arena, |arena| {
            arena.reset();
            Ok(())
        })
    })
}

/// Destroys an arena and all its allocations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_destroy(arena: *mut kvmem_bump_arena) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, arena)
}
