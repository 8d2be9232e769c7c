#![doc = include_str!("../../docs/arena.md")]

mod bump;
mod byte_size;
mod error;
mod human_bytes;
mod machine;
mod pages;
mod populate;
pub mod preflight;
mod process;
mod progress;
mod region;
mod thread_team;

pub(crate) use human_bytes::HumanBytes;
pub(crate) use machine::usable_cores;
pub(crate) use populate::{headroom, reserve_headroom};
pub(crate) use region::PinnedRange;
pub(crate) use thread_team::{ThreadTeam, with_team};

pub use crate::sys::{Call, Errno};
pub use bump::{BumpArena, BumpError, BumpStats, Exclusive, ExclusiveRegion, HeapMemory, Memory};
pub use byte_size::{ByteSize, SizeError, SizeFault};
pub use error::{ArenaError, Limit};
pub use pages::{Fallback, Ladder, Nodes, Numa, PageSize, ParseNumaError, ParsePagesError};
pub use populate::{Method, ParsePopulateError, Populate, Populated, Residency};
pub use process::{ArenaSettings, SettingError};
#[cfg(not(loom))]
pub use process::{
    FreeError, FreeOutcome, ProcessAllocError, ProcessArena, ProcessStats, SetupError,
};
pub use progress::{CancelToken, Progress, ProgressOptions, ProgressTracker, WorkUnit};
#[cfg(not(loom))]
pub use region::ReadOnlyRegion;
pub use region::{Advice, Backing, RangeReceipt, Receipt, Region, RegionBuilder, RegionSlice};
