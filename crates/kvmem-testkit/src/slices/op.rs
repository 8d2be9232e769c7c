//! *Operations* on slabs, as data.

/// Threads that there are at most.
pub const SEATS: u8 = 4;

/// How an allocator of blocks is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// As in `SlabSettings`.
    pub always_malloc: bool,
    /// As in `SlabSettings`.
    pub debug_blocks: bool,
    /// Blocks of more bytes are the system's; 8192 at most.
    pub limit: u16,
    /// The most bytes that may be cached.
    pub stranded_bytes: Option<u32>,
}

impl Config {
    /// The usual one.
    pub const PLAIN: Config =
        Config { always_malloc: false, debug_blocks: false, limit: 8192, stranded_bytes: None };
}

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The thread on this seat, below [`SEATS`]; there is one from now on, if there was none.
    Seat(u8),
    /// A thread that never allocates or frees.
    Outsider,
}

/// A way to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `alloc`.
    Plain,
    /// `alloc_zeroed`.
    Zeroed,
    /// `copy`.
    Copy,
}

/// One operation. A pick names one of the blocks in use, by its share of their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A block of so many bytes.
    Alloc {
        /// By whom.
        seat: u8,
        /// In bytes; `usize::MAX` is one that cannot be.
        size: usize,
        /// How.
        how: How,
    },
    /// Blocks at once.
    Batch {
        /// By whom.
        seat: u8,
        /// In bytes.
        size: usize,
        /// How many.
        n: u16,
    },
    /// A free.
    Free {
        /// By whom.
        seat: u8,
        /// Of which.
        pick: u16,
    },
    /// Frees of neighbours, in the order of addresses.
    FreeRun {
        /// By whom.
        seat: u8,
        /// From which.
        pick: u16,
        /// How many at most.
        n: u8,
    },
    /// A free of blocks of one size that are linked.
    FreeChain {
        /// By whom.
        seat: u8,
        /// From which.
        pick: u16,
        /// How many at most.
        n: u8,
        /// Where in them the link is, modulo what there is.
        link: u16,
    },
    /// Everything cached goes back.
    Trim(Who),
    /// Time passes, and somebody looks at the clock.
    Tick {
        /// Who does.
        who: Who,
        /// How long it was.
        seconds: u8,
    },
    /// A thread ends.
    End(u8),
    /// All blocks are looked at.
    Look,
    /// The allocator is dropped with what is allocated, and another one made.
    Replace(Config),
}
