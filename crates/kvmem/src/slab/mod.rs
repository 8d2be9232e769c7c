#![doc = include_str!("../../docs/slab.md")]
mod caches;
#[cfg(not(loom))]
mod caching;
#[cfg(not(loom))]
mod chain;
#[cfg(not(loom))]
mod class;
mod clock;
mod core;
#[cfg(not(loom))]
mod debug;
mod depot;
#[cfg(not(loom))]
mod extents;
#[cfg(not(loom))]
mod fault;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_face;
mod magazine;
mod magazine_settings;
mod magazine_stats;
#[cfg(not(loom))]
mod magazines;
mod moves;
#[cfg(not(loom))]
mod object;
#[cfg(not(loom))]
mod object_stats;
mod owner_lock;
#[cfg(not(loom))]
mod page_source;
mod reclaim;
#[cfg(not(loom))]
mod reentrancy;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
#[allow(clippy::module_inception)]
mod slab;
#[cfg(not(loom))]
mod slab_allocator;
#[cfg(not(loom))]
mod slab_builder;
#[cfg(not(loom))]
mod slab_global;
#[cfg(not(loom))]
mod slab_settings;
#[cfg(not(loom))]
mod slab_stats;
#[cfg(not(loom))]
mod slabs;
mod source;
mod thread_cache;
#[cfg(not(loom))]
mod threads;
mod topology;

#[cfg(all(test, not(loom)))]
mod tests;

pub use clock::{Clock, ManualClock, SystemClock};
#[cfg(not(loom))]
pub use extents::{
    Extent, ExtentBuilder, ExtentCache, ExtentClassStats, ExtentMapRange, ExtentSetupError,
    ExtentState, ExtentStats,
};
#[cfg(not(loom))]
pub use fault::SlabFault;
#[cfg(not(loom))]
pub use object::{Object, ObjectBuilder, ObjectCache, OwnedObject};
#[cfg(not(loom))]
pub use object_stats::ObjectStats;
#[cfg(not(loom))]
pub use slab_allocator::{SlabAllocator, SlabError};
#[cfg(not(loom))]
pub use slab_builder::{SlabAllocatorBuilder, SlabSetupError};
#[cfg(not(loom))]
pub use slab_global::SlabGlobal;
#[cfg(not(loom))]
pub use slab_settings::{SlabSettingError, SlabSettings};
#[cfg(not(loom))]
pub use slab_stats::{SlabClassStats, SlabStats};
