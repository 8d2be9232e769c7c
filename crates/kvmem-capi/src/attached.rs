//! *Attached pool*: the memory of a pool of another process.

use std::ffi::{c_int, c_void};

use kvmem::pool::{Access, AttachedPool, BlockRef};

use crate::call::{destroy, guard, on, out, read};
use crate::fork::Home;
use crate::options::flag;
use crate::region::duplicate;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// The memory of a pool of another process. It stays as long as this, whatever becomes of that
/// process. Owned by the caller: kvmem_attached_destroy. Any thread, several at once.
pub struct kvmem_attached_pool {
    _opaque: [u8; 0],
}

object!(kvmem_attached_pool, AttachedPool, Attached, |pool| {
    let first = BlockRef { pool: pool.share_id(), offset: 0, len: 0 };
    // SAFETY: only the address is taken.
    match unsafe { pool.bytes(first) } {
        Ok(bytes) => Home::Page(bytes.as_ptr().addr()),
        Err(_) => Home::Process,
    }
});

/// A block by plain data: what another process needs to find it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvmem_block_ref {
    /// The pool, by the number of its memory file.
    pub pool: u64,
    /// Where the block begins in the pool.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl From<BlockRef> for kvmem_block_ref {
    fn from(reference: BlockRef) -> Self {
        let [pool, offset, bytes] = reference.to_bits();
        kvmem_block_ref { pool, offset, bytes }
    }
}

/// Maps the memory of a pool: `fd` is what kvmem_pool_share gave there. The descriptor stays the
/// caller's; a duplicate is kept. With `writable` 1 it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_attach(
    fd: c_int,
    writable: u32,
    out_pool: *mut *mut kvmem_attached_pool,
) -> kvmem_status {
    guard(|| {
        let made = out(out_pool, "out_pool")?;
        let access = if flag(writable, "writable")? { Access::ReadWrite } else { Access::ReadOnly };
        let pool = AttachedPool::attach(duplicate(fd)?, access)?;
        made.put(kvmem_attached_pool::table().insert(pool)?);
        Ok(())
    })
}

/// Where the bytes of a block are in this process. With `writable` 1 to be written, if the pool was
/// attached so (KVMEM_READ_ONLY). That the block is still what it was is known to its own process
/// alone: the two agree on that. The address is good as long as the attached pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_data(
    pool: *const kvmem_attached_pool,
    reference: *const kvmem_block_ref,
    writable: u32,
    out_data: *mut *mut c_void,
) -> kvmem_status {
    on(pool, |pool| {
        let data = out(out_data, "out_data")?;
        // SAFETY: the caller's promise.
        let reference = unsafe { read(reference, "reference") }?;
        let block = BlockRef::from_bits([reference.pool, reference.offset, reference.bytes]);
        let at = if flag(writable, "writable")? {
            // SAFETY: only the address is taken, and no byte is read or written here.
            unsafe { pool.bytes_mut(block) }?.as_mut_ptr()
        } else {
            // SAFETY: as above.
            unsafe { pool.bytes(block) }?.as_ptr().cast_mut()
        };
        data.put(at.cast());
        Ok(())
    })
}

/// What an attached pool is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_attached_info {
    /// Its length in bytes.
    pub bytes: u64,
    /// By what references name it.
    pub number: u64,
    /// Whether it can be written: 1 or 0.
    pub writable: u32,
    /// 0.
    pub reserved: u32,
}

/// What an attached pool is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_get_info(
    pool: *const kvmem_attached_pool,
    out_info: *mut kvmem_attached_info,
) -> kvmem_status {
    on(pool, |pool| {
        out(out_info, "out_info")?.put(kvmem_attached_info {
            bytes: pool.len() as u64,
            number: pool.share_id(),
            writable: u32::from(pool.access() == Access::ReadWrite),
            reserved: 0,
        });
        Ok(())
    })
}

/// Unmaps the memory. Nobody uses its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_destroy(pool: *mut kvmem_attached_pool) -> kvmem_status {
    destroy(pool)
}
