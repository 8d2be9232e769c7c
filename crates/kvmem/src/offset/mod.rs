#![forbid(unsafe_code)]
#![doc = include_str!("../../docs/offset.md")]

mod allocator;
mod error;
mod heap;
mod placement;
mod steps;

#[doc(hidden)]
pub use allocator::SpaceRef;
pub use allocator::{Allocation, OffsetAllocator, OffsetAllocatorBuilder};
pub(crate) use allocator::{LONG, MAX_SHARDS, NODE_BITS, Range, SpaceHandle};
pub use allocator::{RawAllocation, RawHandle};
pub use error::{AllocError, CheckError, RawError, SpaceError};
pub use heap::{BinReport, MapRange, Metrics};
pub use placement::Placement;
