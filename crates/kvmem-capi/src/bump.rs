//! *Bump arena* (L1): bytes handed out one after another, and freed all at once.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::{BumpArena, Memory, Region};

use crate::call::{destroy, guard, on, out, size};
use crate::fork::Home;
use crate::region::kvmem_region;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// Hands out the bytes of a region one after another (layer 1). Owned by the caller:
/// kvmem_bump_destroy. Any thread, several at once, without a lock.
pub struct kvmem_bump_arena {
    _opaque: [u8; 0],
}

object!(kvmem_bump_arena, BumpArena<Bytes>, Bump, |arena| Home::Page(arena.base().addr().get()));

/// A region that others may have too.
pub struct Bytes(Arc<Region>);

// SAFETY: as for the region in it, which stays while this does: 1. it does not change; 2. a region
// is one allocation; 3. it goes with the last that has it.
unsafe impl Memory for Bytes {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Makes an arena on all of a region. The region stays the caller's, and may be destroyed before
/// the arena, which keeps the memory. Bytes are not touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_create(
    region: *const kvmem_region,
    out_arena: *mut *mut kvmem_bump_arena,
) -> kvmem_status {
    guard(|| {
        let made = out(out_arena, "out_arena")?;
        let region = Arc::clone(kvmem_region::table().get(region)?);
        made.put(kvmem_bump_arena::table().insert(BumpArena::new(Bytes(region)))?);
        Ok(())
    })
}

/// Hands out `bytes` bytes at a multiple of `align`, a power of two. They are as the memory was, or
/// as they were left before a reset, and may be used until the arena is reset or destroyed.
/// KVMEM_NO_ROOM costs some nanoseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_alloc(
    arena: *const kvmem_bump_arena,
    bytes: u64,
    align: u64,
    out_data: *mut *mut c_void,
) -> kvmem_status {
    on(arena, |arena| {
        let data = out(out_data, "out_data")?;
        data.put(arena.allocate_bytes(size(bytes), size(align))?.as_ptr().cast());
        Ok(())
    })
}

/// Whether an address is one of the arena's, handed out or not: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_owns(
    arena: *const kvmem_bump_arena,
    address: *const c_void,
    out_owns: *mut u32,
) -> kvmem_status {
    on(arena, |arena| {
        out(out_owns, "out_owns")?.put(u32::from(arena.owns(address.cast())));
        Ok(())
    })
}

/// What an arena has handed out. `used_bytes + left_bytes == capacity_bytes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_bump_stats {
    /// The first address.
    pub data: *mut c_void,
    /// Bytes of the memory.
    pub capacity_bytes: u64,
    /// Bytes handed out, with the padding before them.
    pub used_bytes: u64,
    /// Bytes not handed out.
    pub left_bytes: u64,
}

/// Figures of an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_get_stats(
    arena: *const kvmem_bump_arena,
    out_stats: *mut kvmem_bump_stats,
) -> kvmem_status {
    on(arena, |arena| {
        let stats = arena.stats();
        out(out_stats, "out_stats")?.put(kvmem_bump_stats {
            data: arena.base().as_ptr().cast(),
            capacity_bytes: stats.capacity as u64,
            used_bytes: stats.used as u64,
            left_bytes: stats.left as u64,
        });
        Ok(())
    })
}

/// Frees all that was handed out, at once. No other thread uses the arena meanwhile, and nobody
/// uses the bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_reset(arena: *mut kvmem_bump_arena) -> kvmem_status {
    guard(|| {
        kvmem_bump_arena::table().exclusive(arena, |arena| {
            arena.reset();
            Ok(())
        })
    })
}

/// Destroys an arena, and with it all that it has handed out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_bump_destroy(arena: *mut kvmem_bump_arena) -> kvmem_status {
    destroy(arena)
}
