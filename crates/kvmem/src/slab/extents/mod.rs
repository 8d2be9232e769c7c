//! *Extents*: ranges of offsets, cached per thread.
//!
//! What Bonwick meant magazines for are resources of any kind; here they are the hot sizes of an
//! offset space. Rounds are ranges that the books hold for allocated; classes are sizes; the source
//! is the space.
//!
//! | noun | file | what it is |
//! |---|---|---|
//! | extent cache | `cache.rs`, `builder.rs` | the shared face of a space |
//! | extent | `extent.rs` | a range that somebody has |
//! | hot size | `hot.rs` | a size that is cached, and how it becomes one |
//! | instance | `instance.rs` | what all handles of a space share; the magazines and their source |
//! | raw face | `raw.rs` | handles of plain data |
//! | map, statistics | `map.rs`, `stats.rs` | reports |

mod builder;
mod cache;
mod extent;
mod hot;
mod instance;
mod map;
mod raw;
mod stats;

#[cfg(test)]
mod tests;

pub use builder::{ExtentBuilder, ExtentSetupError};
pub use cache::ExtentCache;
pub use extent::Extent;
pub use map::{ExtentMapRange, ExtentState};
pub use stats::{ExtentClassStats, ExtentStats};
