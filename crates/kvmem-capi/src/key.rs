//! *Key*: the right to DMA into a range of bytes, as C sees it.

use kvmem::register::Key;

/// The right of a device to reach a range of bytes (layer 2). The names are those of verbs; other
/// devices have one of them or none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_key {
    /// By what its registrar knows it: the index of a fixed buffer, a pointer to a memory region,
    /// an address.
    pub handle: u64,
    /// What local work requests say: the lkey; the `buf_index` of a ring; the address on a GPU; 0
    /// where nothing is said.
    pub lkey: u64,
    /// What a remote peer says, if `has_rkey` is 1; else 0.
    pub rkey: u32,
    /// Whether there is an rkey: 1 or 0.
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
