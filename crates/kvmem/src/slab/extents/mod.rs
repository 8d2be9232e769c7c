//! *Extents*: ranges of offsets, cached per thread.
//!
//! Bonwick designed magazines for resources of any kind; here the resources are the hot sizes of an
//! offset space. Rounds are ranges that the metadata count as allocated; classes are sizes; the
//! source is the space.
//!
//! | noun | file | meaning |
//! |---|---|---|
//! | extent cache | `cache.rs`, `builder.rs`, `resize.rs` | the shared interface of a space |
//! | extent | `extent.rs` | a range in use |
//! | hot size | `hot.rs` | a size that is cached, and its detection |
//! | range hook | `hooks.rs` | what runs when a range becomes used or free |
//! | instance | `instance.rs` | the state that all handles of a space share: the magazines and their source |
//! | raw handle | `raw.rs`, `raw_table.rs` | a handle of plain data, and the generations of all |
//! | space reference | `space_ref.rs` | a space by number, for handles that outlive it |
//! | reports | `map.rs`, `snapshot.rs`, `stats.rs` | what is used, cached and free |

mod builder;
mod cache;
mod extent;
mod hooks;
mod hot;
mod instance;
mod map;
mod raw;
mod raw_table;
mod snapshot;
mod space_ref;
mod stats;

#[cfg(all(test, not(loom)))]
mod tests;

pub use builder::{ExtentBuilder, ExtentSetupError};
pub use cache::ExtentCache;
pub use extent::Extent;
pub(crate) use hooks::RangeHooks;
pub use map::{ExtentMapRange, ExtentState};
#[doc(hidden)]
pub use space_ref::ExtentSpaceRef;
pub use stats::{ExtentClassStats, ExtentStats};
