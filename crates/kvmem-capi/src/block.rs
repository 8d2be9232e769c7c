//! *Block*: allocated bytes of a pool.

use std::ffi::c_char;

use kvmem::offset::{RawError, RawHandle};
use kvmem::pool::Pool;

use crate::argument::{In, Out};
use crate::attached::kvmem_block_ref;
use crate::call::{guard, guard_for, size};
use crate::error::CallError;
use crate::key::kvmem_key;
use crate::offset::handle;
use crate::pool::{kvmem_block, with_block};
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;

impl kvmem_block {
    #[inline(always)]
    fn handle(&self) -> RawHandle {
        handle(self.allocator, self.slot, self.generation)
    }
}

/// Runs a call on a block. Its pool may have been destroyed. Poisons the pool if the call panics.
#[inline(always)]
fn on_block(
    block: In<kvmem_block>,
    run: impl FnOnce(&kvmem_block, &Pool) -> Result<(), CallError>,
) -> kvmem_status {
    match block.get("block") {
        // A copy, because the call may write to `block`.
        Ok(&block) => guard_for(block.pool, || {
            // SAFETY: promise 2 of the C caller, which `block` carries for its pool.
            let promise = unsafe { ObjectPromise::of_caller() };
            with_block(&promise, block.pool, block.handle(), |pool| run(&block, pool))
        }),
        Err(error) => guard(|| Err(error)),
    }
}

/// Frees a block. O(1), some nanoseconds for a hot size. KVMEM_ERR_STALE_ALLOCATION if it was freed
/// before. Reads only the first four members of `block`, and writes nothing to it. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_free(block: In<kvmem_block>) -> kvmem_status {
    on_block(block, |block, pool| Ok(pool.free_raw(block.handle()).map(drop)?))
}

/// Frees `count` blocks of one or several pools. Skips those that cannot be freed; the status is
/// that of the first of them. `out_freed` (may be NULL) receives how many were freed, in either
/// case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_free_batch(
    blocks: In<kvmem_block>,
    count: u64,
    out_freed: Out<u64>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let all = blocks.list(count, "blocks")?;
        let (mut freed, mut first) = (0, Ok(()));
        for one in all {
            let done = with_block(&promise, one.pool, one.handle(), |pool| {
                Ok(pool.free_raw(one.handle()).map(drop)?)
            });
            match done {
                Ok(()) => freed += 1,
                Err(error) => first = first.and(Err(error)),
            }
        }
        out_freed.put_if_wanted(freed);
        first
    })
}

/// Frees the tail of a block, which then has `new_bytes` bytes at the same address. Writes the new
/// length to `block`. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_shrink(
    block: Out<kvmem_block>,
    new_bytes: u64,
) -> kvmem_status {
    resize(block, new_bytes, |pool, block| pool.shrink_raw(block.handle(), size(new_bytes)))
}

/// Extends a block in place with the free bytes behind it. It then has `new_bytes` bytes at the
/// same address. Writes the new length to `block`. O(1). KVMEM_ERR_CANNOT_EXTEND if those bytes are
/// not free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_extend(
    block: Out<kvmem_block>,
    new_bytes: u64,
) -> kvmem_status {
    resize(block, new_bytes, |pool, block| pool.extend_raw(block.handle(), size(new_bytes)))
}

fn resize(
    block: Out<kvmem_block>,
    new_bytes: u64,
    change: impl FnOnce(&Pool, &kvmem_block) -> Result<(), RawError>,
) -> kvmem_status {
    let changed = |old: &kvmem_block, pool: &Pool| {
        let resized = kvmem_block { bytes: new_bytes, ..*old };
        change(pool, old)?;
        block.put("block", resized)
    };
    on_block(block.as_in(), changed)
}

/// Returns the key with which `device` can access the whole block. Valid as long as the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_key(
    block: In<kvmem_block>,
    device: In<c_char>,
    out_key: Out<kvmem_key>,
) -> kvmem_status {
    let find = |block: &kvmem_block, pool: &Pool| {
        let found = out_key.get("out_key")?;
        found.put(pool.key_raw(block.handle(), device.some_text("device")?)??.into());
        Ok(())
    };
    on_block(block, find)
}

/// Returns a reference to a block: three numbers for another process that has attached the pool. A
/// reference says where the bytes are, and does not keep them. KVMEM_ERR_WRONG_BACKING if the
/// pool's memory is private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_reference(
    block: In<kvmem_block>,
    out_reference: Out<kvmem_block_ref>,
) -> kvmem_status {
    let refer = |block: &kvmem_block, pool: &Pool| {
        let reference = out_reference.get("out_reference")?;
        reference.put(pool.reference_raw(block.handle())??.into());
        Ok(())
    };
    on_block(block, refer)
}

/// Quarantines a block whose memory has proved faulty: its bytes are not used again as long as the
/// pool exists. Consumes the block. `why` appears in the pool's report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_quarantine(
    block: In<kvmem_block>,
    why: In<c_char>,
) -> kvmem_status {
    let quarantine = |block: &kvmem_block, pool: &Pool| {
        let why = why.some_text("why")?;
        pool.quarantine_block(pool.adopt_raw(block.handle())?, why);
        Ok(())
    };
    on_block(block, quarantine)
}
