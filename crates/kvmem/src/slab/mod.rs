#![doc = include_str!("../../docs/slab.md")]
mod alloc;
mod extents;
mod magazine;
mod slabs;

pub use alloc::{
    Object, ObjectBuilder, ObjectCache, ObjectStats, OwnedObject, SlabAllocator,
    SlabAllocatorBuilder, SlabClassStats, SlabError, SlabGlobal, SlabSettingError, SlabSettings,
    SlabSetupError, SlabStats,
};
#[doc(hidden)]
pub use extents::ExtentSpaceRef;
pub(crate) use extents::RangeHooks;
pub use extents::{
    Extent, ExtentBuilder, ExtentCache, ExtentClassStats, ExtentMapRange, ExtentSetupError,
    ExtentState, ExtentStats,
};
pub use magazine::{Clock, ManualClock, SystemClock};
pub use slabs::SlabFault;
