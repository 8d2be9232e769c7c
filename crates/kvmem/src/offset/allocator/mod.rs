//! The allocator: a heap that threads share, and the handles of its ranges.
//!
//! A [core](space_core) is a heap behind a lock, with a [hint] in front of it. The [registry]
//! stores the cores for the lifetime of the process. Handles identify their core by its number: an
//! [`OffsetAllocator`], its [`Allocation`]s, and the [`SpaceHandle`] of the layer above.

mod allocation;
#[allow(clippy::module_inception)]
mod allocator;
mod builder;
mod core_shards;
mod generations;
mod hint;
mod homes;
#[cfg(all(test, loom, not(shuttle)))]
mod models;
mod range;
mod raw;
mod raw_handle;
mod registry;
mod shards;
mod space_core;
mod space_handle;
mod space_ref;

pub use allocation::Allocation;
pub use allocator::OffsetAllocator;
pub use builder::OffsetAllocatorBuilder;
pub(crate) use range::{LONG, Range};
pub use raw_handle::{RawAllocation, RawHandle};
pub(crate) use shards::{MAX_SHARDS, NODE_BITS};
pub(crate) use space_handle::SpaceHandle;
pub use space_ref::SpaceRef;
