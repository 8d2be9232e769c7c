#![doc = include_str!("../../docs/arena.md")]

#[cfg(not(loom))]
mod aliases;
mod builder;
mod bump;
mod bump_error;
mod byte_size;
mod cgroup;
mod collapse;
mod cores;
mod cursor;
mod diagnose;
mod discard;
mod error;
mod file;
mod headroom;
mod hugetlb;
mod map;
mod mapping;
mod memory;
mod numa;
#[cfg(not(loom))]
mod own_pages;
mod pages;
mod pinned;
mod populate;
pub mod preflight;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod process_error;
#[cfg(not(loom))]
mod process_global;
mod progress;
#[cfg(not(loom))]
mod read_only;
mod receipt;
mod region;
mod reservations;
mod residency;
mod settings;
mod span;
mod views;

pub(crate) use cores::usable as usable_cores;
pub(crate) use headroom::{headroom, reserve as reserve_headroom};
pub(crate) use pinned::PinnedRange;
pub(crate) use receipt::HumanBytes;

pub use crate::sys::{Call, Errno};
pub use crate::threads::{CancelToken, Progress, ProgressOptions, WorkUnit};
pub use builder::{Backing, RegionBuilder};
pub use bump::{BumpArena, BumpStats};
pub use bump_error::BumpError;
pub use byte_size::{ByteSize, SizeError, SizeFault};
pub use discard::Advice;
pub use error::{ArenaError, Limit};
pub use memory::{Exclusive, ExclusiveRegion, HeapMemory, Memory};
pub use numa::{Nodes, Numa, ParseNumaError};
pub use pages::{Ladder, PageSize, ParsePagesError};
pub use populate::{ParsePopulateError, Populate, Populated};
#[cfg(not(loom))]
pub use process::{FreeOutcome, ProcessArena, ProcessStats};
#[cfg(not(loom))]
pub use process_error::{FreeError, ProcessAllocError, SetupError};
pub use progress::ProgressTracker;
#[cfg(not(loom))]
pub use read_only::ReadOnlyRegion;
pub use receipt::{Fallback, RangeReceipt, Receipt};
pub use region::Region;
pub use residency::{Method, Residency};
pub use settings::{ArenaSettings, SettingError};
pub use views::RegionSlice;
