#![doc = include_str!("../../docs/slab.md")]
#[cfg(not(loom))]
mod alloc;
#[cfg(not(loom))]
mod extents;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_face;
mod magazine;
#[cfg(not(loom))]
mod slabs;

#[cfg(not(loom))]
pub use alloc::{
    Object, ObjectBuilder, ObjectCache, ObjectStats, OwnedObject, SlabAllocator,
    SlabAllocatorBuilder, SlabClassStats, SlabError, SlabGlobal, SlabSettingError, SlabSettings,
    SlabSetupError, SlabStats,
};
#[cfg(not(loom))]
pub use extents::{
    Extent, ExtentBuilder, ExtentCache, ExtentClassStats, ExtentMapRange, ExtentSetupError,
    ExtentState, ExtentStats,
};
pub use magazine::{Clock, ManualClock, SystemClock};
#[cfg(not(loom))]
pub use slabs::SlabFault;
