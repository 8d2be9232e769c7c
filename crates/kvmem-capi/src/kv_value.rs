//! *Keys, and pinned values* of a cache.

use std::ffi::c_void;

use kvmem::cache::Pinned;

use crate::argument::In;
use crate::error::CallError;
use crate::status::*;
use crate::table::{Object, object};

/// A key: any bytes, such as a token hash or a text.
pub(crate) type Key = Box<[u8]>;

/// The largest size of a key, in bytes. A longer key fails with KVMEM_ERR_INVALID_ARGUMENT; use a
/// hash of it.
pub const KVMEM_MAX_KEY_BYTES: u64 = 1 << 20;

impl In<c_void> {
    /// Borrows a key. It may be NULL if there are no bytes.
    pub(crate) fn key(&self, key_bytes: u64) -> Result<&[u8], CallError> {
        if key_bytes > KVMEM_MAX_KEY_BYTES {
            return Err(CallError::invalid(format_args!(
                "the key has {key_bytes} bytes, and may have at most {KVMEM_MAX_KEY_BYTES}: use a \
                 hash of the key"
            )));
        }
        self.bytes(key_bytes, "key")
    }
}

/// Copies a key.
pub(crate) fn copy_key(key: &[u8]) -> Result<Key, CallError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(key.len()).map_err(|_| {
        CallError::new(
            KVMEM_ERR_NO_MEMORY,
            format_args!(
                "the key of {} bytes cannot be copied: no memory is left; free some, or use a \
                 hash of the key",
                key.len()
            ),
        )
    })?;
    copy.extend_from_slice(key);
    Ok(copy.into())
}

/// A pin on a value. While it exists, the value is neither evicted nor freed. Owned by the caller:
/// kvmem_kv_cache_pin_release. Any thread.
pub struct kvmem_kv_cache_pin {
    _opaque: [u8; 0],
}

object!(kvmem_kv_cache_pin, Pinned<Key>);

/// A pinned value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_value {
    /// The pin. The bytes are valid until it is released.
    pub pin: *mut kvmem_kv_cache_pin,
    /// The bytes, for reading. The address has no particular alignment.
    pub data: *const c_void,
    /// Number of bytes.
    pub bytes: u64,
    /// Offset of the first byte in the pool.
    pub offset: u64,
}

/// Returns the structure for "no value".
pub(crate) fn no_value() -> kvmem_kv_cache_value {
    kvmem_kv_cache_value { pin: std::ptr::null_mut(), data: std::ptr::null(), bytes: 0, offset: 0 }
}

pub(crate) fn value(pinned: Pinned<Key>) -> Result<kvmem_kv_cache_value, CallError> {
    let block = pinned.block();
    let (data, bytes, offset) = (block.as_ptr().cast(), block.len() as u64, block.offset());
    Ok(kvmem_kv_cache_value {
        pin: kvmem_kv_cache_pin::table().insert(pinned)?,
        data,
        bytes,
        offset,
    })
}

/// A key in a list of keys.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_key {
    /// The bytes of the key; may be NULL if there are none.
    pub key: In<c_void>,
    /// Number of bytes.
    pub key_bytes: u64,
}

/// Borrows a list of keys.
pub(crate) fn borrow_keys(
    keys: &In<kvmem_kv_cache_key>,
    count: u64,
) -> Result<Vec<&[u8]>, CallError> {
    keys.list(count, "keys")?.iter().map(|key| key.key.key(key.key_bytes)).collect()
}
