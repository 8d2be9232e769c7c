//! Operations on slabs, as plain data. `usize::MAX` is an invalid size. A link stands at a position
//! in its blocks, modulo the number of positions.

// The fields of operations have names that say what they are: `n` is the largest number of blocks.
#![expect(missing_docs)]

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
    Alloc { seat: u8, size: usize, how: How },
    /// Allocates a batch.
    Batch { seat: u8, size: usize, n: u16 },
    /// Frees a block.
    Free { seat: u8, pick: u16 },
    /// Frees adjacent blocks in address order.
    FreeBatch { seat: u8, pick: u16, n: u8 },
    /// Frees linked blocks of one size.
    FreeChain { seat: u8, pick: u16, n: u8, link: u16 },
    /// Returns everything cached.
    Trim(Who),
    /// Advances the clock and calls `tick`.
    Tick { who: Who, seconds: u8 },
    /// Ends a thread.
    End(u8),
    /// Checks the contents of all blocks.
    Look,
    /// Drops the allocator with its blocks and creates another.
    Replace(SlabConfig),
}
