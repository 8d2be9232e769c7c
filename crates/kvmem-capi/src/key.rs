//! *Key*: the right to DMA into a range of bytes, as C sees it.

use kvmem::register::Key;

/// The right of a device to access a range of bytes (layer 2). The names are those of verbs; other
/// devices have one of the numbers or none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_key {
    /// The registrar's own name for the range: the index of a fixed buffer, a pointer to a memory
    /// region, or an address.
    pub handle: u64,
    /// The number in local work requests: the lkey, the `buf_index` of a ring, or the address on a
    /// GPU; 0 if requests carry none.
    pub lkey: u64,
    /// The number that a remote peer uses, if `has_rkey` is 1; otherwise 0.
    pub rkey: u32,
    /// Whether the key has an rkey: 1 or 0.
    pub has_rkey: u32,
}

impl From<Key> for kvmem_key {
    fn from(key: Key) -> Self {
        kvmem_key {
            handle: key.handle,
            lkey: key.lkey,
            rkey: key.rkey.unwrap_or(0),
            has_rkey: u32::from(key.rkey.is_some()),
        }
    }
}

impl From<kvmem_key> for Key {
    fn from(key: kvmem_key) -> Self {
        Key { handle: key.handle, lkey: key.lkey, rkey: (key.has_rkey != 0).then_some(key.rkey) }
    }
}
