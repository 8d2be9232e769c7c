//! *Allocators*: what programs use of the slabs: blocks, objects, the global allocator.

mod block_tracker;
mod caching;
mod object;
mod object_builder;
mod object_cache;
mod object_stats;
mod object_store;
mod process_allocator;
mod shared;
mod slab_allocator;
mod slab_batch;
mod slab_builder;
mod slab_error;
mod slab_global;
mod slab_settings;
mod slab_stats;

pub use object::{Object, OwnedObject};
pub use object_builder::ObjectBuilder;
pub use object_cache::ObjectCache;
pub use object_stats::ObjectStats;
pub use slab_allocator::SlabAllocator;
pub use slab_builder::{SlabAllocatorBuilder, SlabSetupError};
pub use slab_error::SlabError;
pub use slab_global::SlabGlobal;
pub use slab_settings::{SlabSettingError, SlabSettings};
pub use slab_stats::{SlabClassStats, SlabStats};
