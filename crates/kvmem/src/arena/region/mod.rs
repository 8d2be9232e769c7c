//! *Regions*: contiguous memory that kvmem maps, and the operations on it.

mod aliases;
mod backing;
mod builder;
mod discard;
mod map;
mod read_only;
mod receipt;
#[allow(clippy::module_inception)]
mod region;
mod residency;
mod sharing;
#[cfg(all(test, not(loom)))]
mod tests;
mod views;

pub(crate) use map::PinnedRange;

pub use backing::Backing;
pub use builder::RegionBuilder;
pub use discard::Advice;
pub use read_only::ReadOnlyRegion;
pub use receipt::{RangeReceipt, Receipt};
pub use region::Region;
pub use views::RegionSlice;
