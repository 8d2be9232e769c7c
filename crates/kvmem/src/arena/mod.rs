#![doc = include_str!("../../docs/arena.md")]

mod bump;
mod byte_size;
mod error;
mod machine;
mod pages;
mod populate;
pub mod preflight;
mod process;
mod progress;
mod region;

pub(crate) use byte_size::HumanBytes;
pub(crate) use machine::{
    MachineFiles, PIECE_BYTES, is_exempt_from_memlock, locked_bytes, max_pin_bytes, pinned_bytes,
    usable_cores,
};
pub(crate) use populate::{headroom, reserve_headroom};
pub(crate) use region::PinnedRange;

pub use crate::sys::{Call, Errno};
pub use crate::threads::{CancelToken, Progress, ProgressOptions, WorkUnit};
pub use bump::{BumpArena, BumpError, BumpStats, Exclusive, ExclusiveRegion, HeapMemory, Memory};
pub use byte_size::{ByteSize, SizeError, SizeFault};
pub use error::{ArenaError, Limit};
pub use pages::{Fallback, Ladder, Nodes, Numa, PageSize, ParseNumaError, ParsePagesError};
#[doc(hidden)]
pub use populate::{MemoryLeft, MemoryWatch};
pub use populate::{Method, ParsePopulateError, Populate, Populated, Residency};
pub use process::{ArenaSettings, SettingError};
pub use process::{
    FreeError, FreeOutcome, ProcessAllocError, ProcessArena, ProcessStats, SetupError,
};
pub use progress::ProgressTracker;
pub use region::ReadOnlyRegion;
pub use region::{Advice, Backing, RangeReceipt, Receipt, Region, RegionBuilder, RegionSlice};
