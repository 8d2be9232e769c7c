//! *Handles*: how clients name blocks.

use serde::{Deserialize, Serialize};

/// Names an entry of the index in one of its uses. A handle of an earlier use is stale. It stays
/// valid when the server restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockHandle {
    /// The entry.
    pub slot: u32,
    /// The use of the entry.
    pub generation: u32,
}

/// A block that a client has pinned or reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) handle: BlockHandle,
    /// In bytes of the memory file.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The CRC-32C of the value, if its writer has calculated it.
    pub(crate) checksum: Option<u32>,
}
