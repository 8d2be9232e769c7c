//! The allocator: a heap that threads share, and the handles of its ranges.
//!
//! A [core](space_core) is a heap behind a lock, with a [hint] in front of it. The [registry]
//! stores the cores for the lifetime of the process. Handles identify their core by its number: an
//! [`OffsetAllocator`], its [`Allocation`]s, and the [`SpaceHandle`] of the layer above.

#[cfg(not(loom))]
mod allocation;
#[cfg(not(loom))]
#[allow(clippy::module_inception)]
mod allocator;
#[cfg(not(loom))]
mod builder;
mod generations;
mod hint;
#[cfg(not(loom))]
mod range;
#[cfg(not(loom))]
mod raw;
mod raw_handle;
#[cfg(not(loom))]
mod registry;
mod space_core;
#[cfg(not(loom))]
mod space_handle;

#[cfg(not(loom))]
pub use allocation::Allocation;
#[cfg(not(loom))]
pub use allocator::OffsetAllocator;
#[cfg(not(loom))]
pub use builder::OffsetAllocatorBuilder;
#[cfg(not(loom))]
pub(crate) use range::{LONG, Range};
pub use raw_handle::{RawAllocation, RawHandle};
#[cfg(loom)]
pub(crate) use space_core::SpaceCore;
#[cfg(not(loom))]
pub(crate) use space_handle::SpaceHandle;
