#![forbid(unsafe_code)]
#![doc = include_str!("../../docs/offset.md")]

mod allocator;
mod error;
mod heap;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_face;
mod placement;
mod steps;

#[cfg(not(loom))]
pub use allocator::{Allocation, OffsetAllocator, OffsetAllocatorBuilder};
#[cfg(not(loom))]
pub(crate) use allocator::{LONG, Range, SpaceHandle};
pub use allocator::{RawAllocation, RawHandle};
pub use error::{AllocError, CheckError, RawError, SpaceError};
pub use heap::{BinReport, MapRange, Metrics};
pub use placement::Placement;
