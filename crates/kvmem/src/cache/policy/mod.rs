//! *Policy*: the order in which blocks are evicted.

mod candidates;
pub(super) mod clock;
mod eviction;
mod eviction_policy;
mod frontier;
mod ghosts;
mod history;
mod lru;
#[cfg(all(test, loom, not(shuttle)))]
mod models;
mod reuse;
mod rings;
mod scan_resistant;
mod shadow_lru;

pub use eviction::Eviction;
pub use eviction_policy::{EvictionPolicy, Slot};
pub use history::History;

pub(super) use candidates::{Candidates, First, is_clearly_less};
pub(super) use clock::{AgeClock, NONE, ORDERS, Oldest, Rank, step};
pub(super) use eviction::{Across, ActivePolicy};
pub(super) use frontier::{Frontier, LARGE_SLACK, run, slack};
