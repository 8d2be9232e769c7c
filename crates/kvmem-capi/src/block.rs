//! *Block*: bytes of a pool that somebody has.

use std::ffi::{c_char, c_void};

use kvmem::offset::{RawError, RawHandle};
use kvmem::pool::Pool;

use crate::attached::kvmem_block_ref;
use crate::call::{guard, guard_for, list, out, read, size, some_text};
use crate::fail::Fail;
use crate::key::kvmem_key;
use crate::offset::handle;
use crate::pool::{kvmem_pool, of_block};
use crate::status::kvmem_status;

/// Bytes of a pool, by plain data: it may be copied and kept anywhere. Any bits are safe to hand
/// back: a block that was freed before is found out and nothing is touched. The bytes are the
/// caller's until kvmem_block_free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_block {
    /// Its pool; NULL: no block.
    pub pool: *mut kvmem_pool,
    /// The pool's books, by a number never used again in this process.
    pub allocator: u64,
    /// Its place in the books.
    pub slot: u32,
    /// Which of those that had the place.
    pub generation: u32,
    /// The first address.
    pub data: *mut c_void,
    /// Where it begins in the pool.
    pub offset: u64,
    /// Its length, exactly as asked for.
    pub bytes: u64,
}

impl kvmem_block {
    #[inline(always)]
    fn handle(&self) -> RawHandle {
        handle(self.allocator, self.slot, self.generation)
    }
}

/// Runs a call on a block, whose pool may have been destroyed, and is poisoned if the call panics.
///
/// # Safety
/// The caller's promise, as to the block.
#[inline(always)]
unsafe fn on_block(
    block: *const kvmem_block,
    run: impl FnOnce(&kvmem_block, &Pool) -> Result<(), Fail>,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    match unsafe { read(block, "block") } {
        // A copy: what is at `block` may be written to.
        Ok(&block) => {
            guard_for(block.pool, || of_block(block.pool, block.handle(), |pool| run(&block, pool)))
        }
        Err(fail) => guard(|| Err(fail)),
    }
}

/// Frees a block. O(1), some nanoseconds for a hot size. KVMEM_STALE_ALLOCATION if it was freed
/// before. Only the first four members of `block` are looked at, and nothing is written to it. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_free(block: *const kvmem_block) -> kvmem_status {
    // SAFETY: the caller's promise.
    unsafe { on_block(block, |block, pool| Ok(pool.free_raw(block.handle()).map(drop)?)) }
}

/// Frees `count` blocks, of one pool or several. Those that cannot be freed are left out: the
/// status is that of the first of them, and `out_freed` (may be NULL) is set to how many were
/// freed, also then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_free_batch(
    blocks: *const kvmem_block,
    count: u64,
    out_freed: *mut u64,
) -> kvmem_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let all = unsafe { list(blocks, count, "blocks") }?;
        let (mut freed, mut first) = (0, Ok(()));
        for one in all {
            let done = of_block(one.pool, one.handle(), |pool| {
                Ok(pool.free_raw(one.handle()).map(drop)?)
            });
            match done {
                Ok(()) => freed += 1,
                Err(fail) => first = first.and(Err(fail)),
            }
        }
        if let Ok(count) = out(out_freed, "") {
            count.put(freed);
        }
        first
    })
}

/// Gives back the tail: the block is `new_bytes` bytes afterwards, which is written to it, and
/// begins where it did. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_shrink(
    block: *mut kvmem_block,
    new_bytes: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    unsafe {
        resize(block, new_bytes, |pool, block| pool.shrink_raw(block.handle(), size(new_bytes)))
    }
}

/// Takes in free bytes that lie behind: the block is `new_bytes` bytes afterwards, which is written
/// to it, and begins where it did. Nothing is moved. O(1). KVMEM_BLOCKED if they are not free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_extend(
    block: *mut kvmem_block,
    new_bytes: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    unsafe {
        resize(block, new_bytes, |pool, block| pool.extend_raw(block.handle(), size(new_bytes)))
    }
}

/// # Safety
/// The caller's promise, as to the block.
unsafe fn resize(
    block: *mut kvmem_block,
    new_bytes: u64,
    change: impl FnOnce(&Pool, &kvmem_block) -> Result<(), RawError>,
) -> kvmem_status {
    let changed = |old: &kvmem_block, pool: &Pool| {
        let resized = kvmem_block { bytes: new_bytes, ..*old };
        change(pool, old)?;
        out(block, "block")?.put(resized);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on_block(block, changed) }
}

/// The key with which `device` can reach all of a block. It is good as long as the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_key(
    block: *const kvmem_block,
    device: *const c_char,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    let find = |block: &kvmem_block, pool: &Pool| {
        let found = out(out_key, "out_key")?;
        // SAFETY: the caller's promise.
        found.put(pool.key_raw(block.handle(), unsafe { some_text(device, "device") }?)??.into());
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on_block(block, find) }
}

/// A block by three numbers, for another process that has attached the pool. It says where the
/// bytes are, and does not keep them. KVMEM_WRONG_BACKING if the pool's memory is private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_reference(
    block: *const kvmem_block,
    out_reference: *mut kvmem_block_ref,
) -> kvmem_status {
    let refer = |block: &kvmem_block, pool: &Pool| {
        let reference = out(out_reference, "out_reference")?;
        reference.put(pool.reference_raw(block.handle())??.into());
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on_block(block, refer) }
}

/// Keeps the bytes of a block from use for as long as the pool: for blocks that have turned out to
/// be bad. The block is gone afterwards; `why` is in the pool's report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_condemn(
    block: *const kvmem_block,
    why: *const c_char,
) -> kvmem_status {
    let quarantine_block = |block: &kvmem_block, pool: &Pool| {
        // SAFETY: the caller's promise.
        let why = unsafe { some_text(why, "why") }?;
        pool.quarantine_block(pool.adopt_raw(block.handle())?, why);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on_block(block, quarantine_block) }
}
