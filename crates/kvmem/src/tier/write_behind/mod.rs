//! *Write-behind*: a queue between a cache and a lower tier, which other threads write from.

mod builder;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod stats;
#[allow(clippy::module_inception)]
mod write_behind;

pub use builder::WriteBehindBuilder;
pub use queue::{OnDrop, WhenFull};
pub use stats::WriteBehindStats;
pub use write_behind::WriteBehind;
