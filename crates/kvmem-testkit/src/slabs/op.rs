//! Operations on slabs, as plain data.

/// The largest number of threads.
pub const SEATS: u8 = 4;

/// The settings of a slab allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabConfig {
    /// As in the allocator's settings.
    pub always_malloc: bool,
    /// As in the allocator's settings.
    pub debug_blocks: bool,
    /// The system serves larger blocks; at most 8192.
    pub limit: u16,
    /// The limit of cached bytes.
    pub max_cached_bytes: Option<u32>,
}

impl SlabConfig {
    /// The default settings.
    pub const PLAIN: SlabConfig = SlabConfig {
        always_malloc: false,
        debug_blocks: false,
        limit: 8192,
        max_cached_bytes: None,
    };
}

/// The thread of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The thread with this number, below [`SEATS`]; it is started if necessary.
    Seat(u8),
    /// A thread that never allocates or frees.
    Outsider,
}

/// The function that allocates a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `allocate`.
    Plain,
    /// `allocate_zeroed`.
    Zeroed,
    /// `copy`.
    Copy,
}

/// One operation. A pick selects one of the live blocks, each equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabOp {
    /// Allocates a block.
    Alloc {
        /// The thread.
        seat: u8,
        /// Bytes; `usize::MAX` is an invalid size.
        size: usize,
        /// The function.
        how: How,
    },
    /// Allocates a batch.
    Batch {
        /// The thread.
        seat: u8,
        /// Bytes of each block.
        size: usize,
        /// Number of blocks.
        n: u16,
    },
    /// Frees a block.
    Free {
        /// The thread.
        seat: u8,
        /// The block.
        pick: u16,
    },
    /// Frees adjacent blocks in address order.
    FreeBatch {
        /// The thread.
        seat: u8,
        /// The first block.
        pick: u16,
        /// The largest number of blocks.
        n: u8,
    },
    /// Frees linked blocks of one size.
    FreeChain {
        /// The thread.
        seat: u8,
        /// The first block.
        pick: u16,
        /// The largest number of blocks.
        n: u8,
        /// The position of the link in the blocks, modulo the number of positions.
        link: u16,
    },
    /// Returns everything cached.
    Trim(Who),
    /// Advances the clock and calls `tick`.
    Tick {
        /// The thread.
        who: Who,
        /// Seconds to advance.
        seconds: u8,
    },
    /// Ends a thread.
    End(u8),
    /// Checks the contents of all blocks.
    Look,
    /// Drops the allocator with its blocks and creates another.
    Replace(SlabConfig),
}
