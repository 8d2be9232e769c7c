//! *Block*: bytes of a pool that somebody has.

use std::ffi::{c_char, c_void};

use kvmem::offset::RawHandle;

use crate::attached::kvmem_block_ref;
use crate::call::{guard, list, out, read, size, some_text};
use crate::fail::Fail;
use crate::key::kvmem_key;
use crate::offset::handle;
use crate::pool::{kvmem_pool, of_block};
use crate::status::kvmem_status;

/// Bytes of a pool, by plain data: it may be copied and kept anywhere. Any bits are safe to hand back: a block that was freed before is found
/// out and nothing is touched. The bytes are the caller's until kvmem_block_free.
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

/// Frees a block. O(1), some nanoseconds for a hot size. KVMEM_STALE_ALLOCATION if it was freed before. Only the first four members of `block` are
/// looked at, and nothing is written to it. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_free(block: *const kvmem_block) -> kvmem_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let block = unsafe { read(block, "block") }?;
        of_block(block.pool, |pool| {
            pool.free_raw(block.handle())?;
            Ok(())
        })
    })
}

/// Frees `count` blocks, of one pool or several. Those that cannot be freed are left out: the status is that of the first of them, and `out_freed` (may be
/// NULL) is set to how many were freed, also then.
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
            let done = of_block(one.pool, |pool| Ok(pool.free_raw(one.handle()).map(drop)?));
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

/// Gives back the tail: the block is `new_bytes` bytes afterwards, which is written to it, and begins where it did. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_shrink(block: *mut kvmem_block, new_bytes: u64) -> kvmem_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { resize(block, new_bytes, false) })
}

/// Takes in free bytes that lie behind: the block is `new_bytes` bytes afterwards, which is written to it, and begins where it did. Nothing is moved. O(1).
/// KVMEM_BLOCKED if they are not free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_extend(block: *mut kvmem_block, new_bytes: u64) -> kvmem_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { resize(block, new_bytes, true) })
}

/// # Safety
/// The caller's promise, as to the block.
unsafe fn resize(block: *mut kvmem_block, new_bytes: u64, extend: bool) -> Result<(), Fail> {
    // SAFETY: the caller's promise.
    let mut resized = *unsafe { read(block, "block") }?;
    of_block(resized.pool, |pool| {
        let (handle, len) = (resized.handle(), size(new_bytes));
        Ok(if extend { pool.extend_raw(handle, len) } else { pool.shrink_raw(handle, len) }?)
    })?;
    resized.bytes = new_bytes;
    out(block, "block")?.put(resized);
    Ok(())
}

/// The key with which `device` can reach all of a block. It is good as long as the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_key(
    block: *const kvmem_block,
    device: *const c_char,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    guard(|| {
        let found = out(out_key, "out_key")?;
        // SAFETY: the caller's promise.
        let (block, device) = unsafe { (read(block, "block")?, some_text(device, "device")?) };
        of_block(block.pool, |pool| {
            found.put(pool.key_raw(block.handle(), device)??.into());
            Ok(())
        })
    })
}

/// A block by three numbers, for another process that has attached the pool. It says where the bytes are, and does not keep them.
/// KVMEM_WRONG_BACKING if the pool's memory is private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_reference(
    block: *const kvmem_block,
    out_reference: *mut kvmem_block_ref,
) -> kvmem_status {
    guard(|| {
        let reference = out(out_reference, "out_reference")?;
        // SAFETY: the caller's promise.
        let block = unsafe { read(block, "block") }?;
        of_block(block.pool, |pool| {
            reference.put(pool.reference_raw(block.handle())??.into());
            Ok(())
        })
    })
}

/// Keeps the bytes of a block from use for as long as the pool: for blocks that have turned out to be bad. The block is gone afterwards; `why` is
/// in the pool's report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_block_condemn(block: *const kvmem_block, why: *const c_char) -> kvmem_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (block, why) = unsafe { (read(block, "block")?, some_text(why, "why")?) };
        of_block(block.pool, |pool| {
            pool.condemn(pool.adopt_raw(block.handle())?, why);
            Ok(())
        })
    })
}
