//! *Allocators*: what programs use of the slabs: blocks, objects, the global allocator.

mod block_tracker;
mod caching;
mod object_cache;
mod object_stats;
mod slab_allocator;
mod slab_batch;
mod slab_builder;
mod slab_global;
mod slab_settings;
mod slab_stats;

pub use object_cache::{Object, ObjectBuilder, ObjectCache, OwnedObject};
pub use object_stats::ObjectStats;
pub use slab_allocator::{SlabAllocator, SlabError};
pub use slab_builder::{SlabAllocatorBuilder, SlabSetupError};
pub use slab_global::SlabGlobal;
pub use slab_settings::{SlabSettingError, SlabSettings};
pub use slab_stats::{SlabClassStats, SlabStats};
