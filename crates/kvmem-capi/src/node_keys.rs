//! *Node keys* and *hints*: what names a value of a node, and what it is worth.

use std::ffi::c_void;

use kvmem_node::format::MAX_KEY;
use kvmem_node::{CallError as ServerError, ClientError, MAX_BATCH, ParentKey, ValueOptions};

use crate::argument::In;
use crate::error::CallError;
use crate::hints;
use crate::kv_value::kvmem_kv_cache_key;

/// Borrows a key.
pub(crate) fn node_key(key: &In<c_void>, key_bytes: u64) -> Result<&[u8], CallError> {
    let key = key.key(key_bytes)?;
    if (1..=MAX_KEY).contains(&key.len()) {
        return Ok(key);
    }
    Err(ClientError::Call(ServerError::BadKey { len: key.len(), limit: MAX_KEY }).into())
}

/// Borrows a list of at most [`MAX_BATCH`] elements.
pub(crate) fn batch<'a, T>(
    list: &'a In<T>,
    count: u64,
    name: &'static str,
) -> Result<&'a [T], CallError> {
    list.short_list(count, MAX_BATCH as u64, name)
}

/// Borrows a list of keys.
pub(crate) fn node_keys(
    keys: &In<kvmem_kv_cache_key>,
    count: u64,
) -> Result<Vec<&[u8]>, CallError> {
    batch(keys, count, "keys")?.iter().map(|key| node_key(&key.key, key.key_bytes)).collect()
}

/// Hints about the worth of a value of a node. All 0: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_node_hints {
    /// After this many milliseconds the value is gone. 0: it stays until it is evicted.
    pub ttl_ms: u64,
    /// 0 to 3: values of a lower priority are evicted first.
    pub priority: u32,
    /// The type of the value's elements, as in kvmem_value_hints. The node passes it to its tier.
    pub data_type: u32,
    /// The bytes of the key of the parent, the value before it in a chain, such as that of the
    /// block before it in a prompt. NULL: the value stands alone. The node evicts a value only when
    /// it has no more values with it as their parent, and a use of a value is one of its parent.
    pub parent: In<c_void>,
    /// Number of bytes of the parent's key: 1 to KVMEM_NODE_MAX_KEY_BYTES; 0 without a parent.
    pub parent_bytes: u64,
}

impl kvmem_node_hints {
    pub(crate) fn read(&self) -> Result<ValueOptions, CallError> {
        let (priority, ttl) = (hints::priority(self.priority)?, hints::ttl(self.ttl_ms));
        let parent = match (self.parent.is_null(), self.parent_bytes) {
            (true, 0) => None,
            (_, bytes) => {
                let key = node_key(&self.parent, bytes)?;
                Some(ParentKey::new(key).map_err(ClientError::from)?)
            }
        };
        Ok(ValueOptions { parent, priority, ttl, data_type: hints::data_type(self.data_type)? })
    }
}
