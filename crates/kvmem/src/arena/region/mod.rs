//! *Regions*: contiguous memory that kvmem maps, and the operations on it.

#[cfg(not(loom))]
mod aliases;
pub(super) mod builder;
mod discard;
pub(super) mod map;
#[cfg(not(loom))]
mod read_only;
mod receipt;
#[allow(clippy::module_inception)]
mod region;
mod views;

pub(crate) use map::PinnedRange;
pub(crate) use receipt::HumanBytes;

pub use builder::{Backing, RegionBuilder};
pub use discard::Advice;
#[cfg(not(loom))]
pub use read_only::ReadOnlyRegion;
pub use receipt::{Fallback, RangeReceipt, Receipt};
pub use region::Region;
pub use views::RegionSlice;
