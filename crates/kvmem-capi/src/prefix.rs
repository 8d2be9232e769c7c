//! *Prefix*: keys of the blocks of a prompt.

use std::ffi::c_void;
use std::num::NonZeroUsize;

use kvmem::cache::{PREFIX_KEY_BYTES, prefix_keys};

use crate::argument::{In, Out};
use crate::call::{guard, size};
use crate::error::CallError;
use crate::status::*;

/// The size of a kvmem_prefix_key in bytes.
pub const KVMEM_PREFIX_KEY_BYTES: u64 = 32;

const _: () = assert!(KVMEM_PREFIX_KEY_BYTES as usize == PREFIX_KEY_BYTES);

/// The key of a block of tokens, and of all tokens up to its end. Its bytes are a key of a node, of
/// a cache or of a disk tier.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_prefix_key {
    /// The bytes of the key.
    pub bytes: [u8; 32],
}

/// Calculates the keys of the complete blocks of a prompt: `count / block` of them, the first one
/// first. The key of a block is a hash of the key before it and of the block's tokens, so two
/// prompts share a key only if they have the same tokens up to the block's end. The first block
/// stands behind the `salt` (NULL with `salt_bytes` 0: none), which names all else that the values
/// depend on, such as the weights of the model and the type of its KV cache. All languages have the
/// same keys, on all machines.
///
/// Writes at most `capacity` keys to `out_keys` (NULL with `capacity` 0: none). `out_count`
/// receives the full number, also with KVMEM_ERR_BUFFER_TOO_SMALL, which calculates none.
/// KVMEM_ERR_ZERO_SIZE: `block` is 0. O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_prefix_keys(
    tokens: In<i32>,
    count: u64,
    block: u64,
    salt: In<c_void>,
    salt_bytes: u64,
    out_keys: Out<kvmem_prefix_key>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    guard(|| {
        let tokens = tokens.list(count, "tokens")?;
        let salt = salt.bytes(salt_bytes, "salt")?;
        let block = NonZeroUsize::new(size(block)).ok_or_else(|| {
            let text = "block is 0: pass the number of tokens in a block";
            CallError::new(KVMEM_ERR_ZERO_SIZE, text)
        })?;
        let needed = (tokens.len() / block) as u64;
        if capacity < needed {
            out_count.get("out_count")?.put(needed);
            let is_question = out_keys.is_null() && capacity == 0;
            let error = CallError::BufferTooSmall { needed, given: capacity };
            return if is_question { Ok(()) } else { Err(error) };
        }
        let key = |bytes| kvmem_prefix_key { bytes };
        let keys: Vec<_> = prefix_keys(tokens, block, salt).into_iter().map(key).collect();
        out_keys.write_list(&keys, capacity, &out_count)
    })
}
