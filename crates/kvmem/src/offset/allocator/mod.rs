//! The allocator: a heap shared by threads, and the handles of its ranges.

#[cfg(not(loom))]
mod allocation;
#[cfg(not(loom))]
#[allow(clippy::module_inception)]
mod allocator;
mod core;
mod hint;
#[cfg(not(loom))]
mod range;
mod raw;
#[cfg(not(loom))]
mod registry;
#[cfg(not(loom))]
mod space_handle;

#[cfg(not(loom))]
pub use allocation::Allocation;
#[cfg(not(loom))]
pub use allocator::{OffsetAllocator, OffsetAllocatorBuilder};
#[cfg(loom)]
pub(crate) use core::SpaceCore;
#[cfg(not(loom))]
pub(crate) use range::{LONG, Range};
pub use raw::{RawAllocation, RawHandle};
#[cfg(not(loom))]
pub(crate) use space_handle::SpaceHandle;
