//! [`BlockRef`]: a block named by plain data, for other processes.

use serde::{Deserialize, Serialize};

/// A reference to a block by plain data. Another process finds the block with it in the pool that
/// it has [attached](crate::pool::AttachedPool).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockRef {
    /// The pool: the number of its memory file. No other memory file has the number while this one
    /// exists.
    pub pool: u64,
    /// The offset of the block in the pool, in bytes.
    pub offset: u64,
    /// The length of the block in bytes.
    pub len: u64,
}

impl BlockRef {
    /// Returns three numbers: pool, offset, length.
    #[must_use]
    pub fn to_bits(self) -> [u64; 3] {
        [self.pool, self.offset, self.len]
    }

    /// Makes a reference from these numbers. Resolving it checks whether it names a range.
    #[must_use]
    pub fn from_bits([pool, offset, len]: [u64; 3]) -> BlockRef {
        BlockRef { pool, offset, len }
    }
}
