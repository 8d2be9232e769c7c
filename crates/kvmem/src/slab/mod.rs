//! # Layer 4: slab, objects

mod chain;
mod class;
mod debug;
mod fault;
mod global;
mod magazines;
mod make;
mod nested;
mod object;
mod page_source;
mod ring;
mod slab;
mod slabs;
mod slice;
mod slice_builder;
mod slice_settings;
mod slice_stats;

pub use fault::SliceFault;
pub use global::SliceGlobal;
pub use object::{Object, ObjectBuilder, ObjectCache, OwnedObject};
pub use slice::{SliceAllocator, SliceError};
pub use slice_builder::{SliceBuilder, SliceSetupError};
pub use slice_settings::{SliceSettingError, SliceSettings};
pub use slice_stats::{SliceClassStats, SliceStats};
