#![doc = include_str!("../../docs/arena.md")]

mod builder;
mod bump;
mod bump_error;
mod byte_size;
mod cgroup;
mod collapse;
mod cores;
mod crew;
mod cursor;
mod diagnose;
mod discard;
#[cfg(not(loom))]
mod elsewhere;
mod error;
mod file;
#[cfg(not(loom))]
mod global;
mod headroom;
mod hold;
mod lay;
mod mapping;
mod memory;
mod numa;
#[cfg(not(loom))]
mod own_pages;
mod pages;
mod pool;
mod populate;
pub mod preflight;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod process_error;
#[cfg(not(loom))]
mod read_only;
mod receipt;
mod region;
mod reservations;
mod residency;
mod settings;
mod span;
mod views;
mod watch;

pub(crate) use cores::usable as usable_cores;
pub(crate) use crew::{Crew, lead};
pub(crate) use headroom::{headroom, reserve as reserve_headroom};
pub(crate) use hold::Hold;
pub(crate) use receipt::Size;
pub(crate) use watch::Watched;

pub use crate::sys::{Call, Errno};
pub use builder::{Backing, RegionBuilder};
pub use bump::{BumpArena, BumpStats};
pub use bump_error::BumpError;
pub use byte_size::{ByteSize, SizeError, SizeFault};
pub use discard::Advice;
pub use error::{ArenaError, Limit};
pub use memory::{Exclusive, ExclusiveRegion, HeapMemory, Memory};
pub use numa::{Nodes, Numa};
pub use pages::{Ladder, PageSize, ParsePagesError};
pub use populate::{Populate, Populated};
#[cfg(not(loom))]
pub use process::{Freed, ProcessArena, ProcessStats};
#[cfg(not(loom))]
pub use process_error::{FreeError, ProcessAllocError, SetupError};
#[cfg(not(loom))]
pub use read_only::ReadOnlyRegion;
pub use receipt::{Fallback, RangeReceipt, Receipt};
pub use region::Region;
pub use residency::{Method, Residency};
pub use settings::{ArenaSettings, SettingError};
pub use views::Slice;
pub use watch::{CancelToken, Progress, ProgressOptions, WorkUnit};
