#![doc = include_str!("../../docs/arena.md")]

mod builder;
mod cgroup;
mod cores;
mod diagnose;
mod discard;
mod error;
mod file;
mod headroom;
mod lay;
mod mapping;
mod numa;
mod pages;
mod pool;
mod populate;
mod receipt;
mod region;
mod residency;
mod span;
mod views;
mod watch;

pub use crate::sys::{Call, Errno};
pub use builder::{Backing, RegionBuilder};
pub use discard::Advice;
pub use error::{ArenaError, Limit};
pub use numa::{Nodes, Numa};
pub use pages::{Ladder, PageSize, ParsePagesError};
pub use populate::{Populate, Populated};
pub use receipt::{Fallback, RangeReceipt, Receipt};
pub use region::Region;
pub use residency::{Method, Residency};
pub use views::Slice;
pub use watch::{Cancel, Progress, Watch};
