#![doc = include_str!("../../docs/slab.md")]
mod caches;
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
#[cfg(not(loom))]
mod global;
mod local;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_face;
mod magazine;
#[cfg(not(loom))]
mod magazines;
#[cfg(not(loom))]
mod make;
mod moves;
#[cfg(not(loom))]
mod nested;
#[cfg(not(loom))]
mod object;
#[cfg(not(loom))]
mod object_stats;
mod owner;
#[cfg(not(loom))]
mod page_source;
mod reap;
#[cfg(not(loom))]
mod ring;
mod settings;
#[cfg(not(loom))]
#[allow(clippy::module_inception)]
mod slab;
#[cfg(not(loom))]
mod slabs;
#[cfg(not(loom))]
mod slice;
#[cfg(not(loom))]
mod slice_builder;
#[cfg(not(loom))]
mod slice_settings;
#[cfg(not(loom))]
mod slice_stats;
mod source;
mod stats;
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
pub use global::SlabGlobal;
#[cfg(not(loom))]
pub use object::{Object, ObjectBuilder, ObjectCache, OwnedObject};
#[cfg(not(loom))]
pub use object_stats::ObjectStats;
#[cfg(not(loom))]
pub use slice::{SlabAllocator, SlabError};
#[cfg(not(loom))]
pub use slice_builder::{SlabAllocatorBuilder, SlabSetupError};
#[cfg(not(loom))]
pub use slice_settings::{SlabSettingError, SlabSettings};
#[cfg(not(loom))]
pub use slice_stats::{SlabClassStats, SlabStats};
