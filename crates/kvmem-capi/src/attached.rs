//! *Attached pool*: the memory of another process's pool.

use std::ffi::{c_int, c_void};

use kvmem::pool::{Access, AttachedPool, BlockRef};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::guard;
use crate::fork::ForkScope;
use crate::options::flag;
use crate::region::duplicate;
use crate::status::kvmem_status;
use crate::table::object;

/// The memory of another process's pool. It stays mapped until it is destroyed, also if that
/// process ends. Owned by the caller: kvmem_attached_pool_destroy. Any thread, several at once.
pub struct kvmem_attached_pool {
    _opaque: [u8; 0],
}

object!(kvmem_attached_pool, AttachedPool, |pool| {
    let first = BlockRef { pool: pool.share_id(), offset: 0, len: 0 };
    // SAFETY: the slice becomes an address at once. No byte is read through it, so no write of
    // another process overlaps an access.
    match unsafe { pool.bytes(first) } {
        Ok(bytes) => ForkScope::IfMapped(bytes.as_ptr().addr()),
        Err(_) => ForkScope::ParentOnly,
    }
});

/// A reference to a block, as plain data: all that another process needs to find it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvmem_block_ref {
    /// The pool, by the number of its memory file.
    pub pool: u64,
    /// Offset of the block in the pool.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl From<BlockRef> for kvmem_block_ref {
    fn from(reference: BlockRef) -> Self {
        let [pool, offset, bytes] = reference.to_bits();
        kvmem_block_ref { pool, offset, bytes }
    }
}

/// Maps the memory of another process's pool. `fd` comes from that process's kvmem_pool_share. The
/// descriptor stays the caller's; the object keeps a duplicate. With `writable` 1 the memory can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_pool_attach(
    fd: c_int,
    writable: u32,
    out_pool: Out<*mut kvmem_attached_pool>,
) -> kvmem_status {
    guard(|| {
        let made = out_pool.get("out_pool")?;
        let access = if flag(writable, "writable")? { Access::ReadWrite } else { Access::ReadOnly };
        let pool = AttachedPool::attach(duplicate(fd)?, access)?;
        made.insert(pool)
    })
}

/// Returns the address of a block in this process. With `writable` 1 it can be written, if the pool
/// was attached so; otherwise KVMEM_ERR_READ_ONLY. Only the process of the pool knows whether the
/// block is still allocated, so the two processes must agree on that. The address is valid as long
/// as the attached pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_pool_data(
    pool: Handle<kvmem_attached_pool>,
    reference: In<kvmem_block_ref>,
    writable: u32,
    out_data: Out<*mut c_void>,
) -> kvmem_status {
    pool.on(|pool| {
        let data = out_data.get("out_data")?;
        let reference = reference.get("reference")?;
        let block = BlockRef::from_bits([reference.pool, reference.offset, reference.bytes]);
        let at = if flag(writable, "writable")? {
            // SAFETY: the slice becomes an address at once. No byte is read or written through it,
            // so no other access overlaps, and this crate keeps no other slice of the bytes.
            unsafe { pool.bytes_mut(block) }?.as_mut_ptr()
        } else {
            // SAFETY: the slice becomes an address at once. No byte is read through it, so no write
            // of another process overlaps an access.
            unsafe { pool.bytes(block) }?.as_ptr().cast_mut()
        };
        data.put(at.cast());
        Ok(())
    })
}

/// Properties of an attached pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_attached_pool_info {
    /// Length in bytes.
    pub bytes: u64,
    /// The number that references name the pool by.
    pub share_id: u64,
    /// Whether it can be written: 1 or 0.
    pub writable: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Returns the properties of an attached pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_pool_get_info(
    pool: Handle<kvmem_attached_pool>,
    out_info: Out<kvmem_attached_pool_info>,
) -> kvmem_status {
    pool.on(|pool| {
        out_info.put(
            "out_info",
            kvmem_attached_pool_info {
                bytes: pool.len() as u64,
                share_id: pool.share_id(),
                writable: u32::from(pool.access() == Access::ReadWrite),
                reserved: 0,
            },
        )
    })
}

/// Unmaps the memory. The program must not use its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_attached_pool_destroy(
    pool: Owned<kvmem_attached_pool>,
) -> kvmem_status {
    pool.destroy()
}
