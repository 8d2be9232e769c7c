//! *Bump arena* (L1): bytes allocated one after another, and freed all at once.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::{BumpArena, Memory, Region};

use crate::argument::{Handle, Out, Owned};
use crate::call::{guard, size};
use crate::fork::ForkScope;
use crate::promise::ObjectPromise;
use crate::region::kvmem_region;
use crate::stats::kvmem_bump_arena_stats;
use crate::status::kvmem_status;
use crate::table::object;

/// Allocates the bytes of a region one after another (layer 1). Owned by the caller:
/// kvmem_bump_arena_destroy. Any thread, several at once, without a lock.
pub struct kvmem_bump_arena {
    _opaque: [u8; 0],
}

object!(kvmem_bump_arena, BumpArena<Bytes>, |arena| ForkScope::IfMapped(arena.base().addr().get()));

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
    region: Handle<kvmem_region>,
    out_arena: Out<*mut kvmem_bump_arena>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_arena.get("out_arena")?;
        let region = Arc::clone(region.get(&promise)?);
        made.insert(BumpArena::new(Bytes(region)))
    })
}

/// Allocates `bytes` bytes at a multiple of `align`, a power of two. Their contents are those of
/// the memory, or those left before a reset. They are valid until the arena is reset or destroyed.
/// A failure with KVMEM_ERR_OUT_OF_SPACE costs some nanoseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_allocate(
    arena: Handle<kvmem_bump_arena>,
    bytes: u64,
    align: u64,
    out_data: Out<*mut c_void>,
) -> kvmem_status {
    arena.on(|arena| {
        let data = out_data.get("out_data")?;
        data.put(arena.allocate_bytes(size(bytes), size(align))?.as_ptr().cast());
        Ok(())
    })
}

/// Returns whether an address lies in the arena's memory, allocated or not: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_owns(
    arena: Handle<kvmem_bump_arena>,
    address: *const c_void,
    out_owns: Out<u32>,
) -> kvmem_status {
    arena.on(|arena| out_owns.put("out_owns", u32::from(arena.owns(address.cast()))))
}

/// Reads the statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_get_stats(
    arena: Handle<kvmem_bump_arena>,
    out_stats: Out<kvmem_bump_arena_stats>,
) -> kvmem_status {
    arena.on(|arena| {
        let data = arena.base().as_ptr().cast();
        out_stats.put("out_stats", kvmem_bump_arena_stats::new(&arena.stats(), data))
    })
}

/// Frees all allocations at once. No other thread may use the arena meanwhile, and the program must
/// not use the allocated bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_reset(arena: Owned<kvmem_bump_arena>) -> kvmem_status {
    arena.exclusive(|arena| {
        arena.reset();
        Ok(())
    })
}

/// Destroys an arena and all its allocations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_arena_destroy(arena: Owned<kvmem_bump_arena>) -> kvmem_status {
    arena.destroy()
}
