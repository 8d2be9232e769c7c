#![forbid(unsafe_code)]
#![doc = include_str!("../../docs/offset.md")]

mod aligned;
#[cfg(not(loom))]
mod allocation;
#[cfg(not(loom))]
mod allocator;
mod bins;
mod boundary;
mod check;
mod core;
mod error;
#[cfg(not(loom))]
mod ground;
mod heap;
mod hint;
mod holes;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_face;
mod nursery;
mod order;
mod pending;
mod placement;
#[cfg(not(loom))]
mod range;
mod raw;
#[cfg(not(loom))]
mod registry;
mod renewal;
mod report;
mod resize;
mod scattered;
mod split;
mod steps;
mod table;
#[cfg(all(test, not(loom)))]
mod worst;

#[cfg(not(loom))]
pub use allocation::Allocation;
#[cfg(not(loom))]
pub use allocator::{OffsetAllocator, OffsetAllocatorBuilder};
pub use error::{AllocError, CheckError, RawError, SpaceError};
#[cfg(not(loom))]
pub(crate) use ground::Ground;
pub use placement::Placement;
#[cfg(not(loom))]
pub(crate) use range::{LONG, Range};
pub use raw::{RawAllocation, RawHandle};
pub use report::{BinReport, MapRange, Metrics};
