//! *Policy*: the order in which blocks are evicted.

mod clock;
mod eviction;
mod lru;
mod reuse;
mod rings;
mod scan_resistant;
mod shadow_lru;

pub use eviction::{Eviction, EvictionPolicy, Slot};

pub(super) use clock::{AgeClock, NONE, ORDERS, Oldest, Rank};
pub(super) use eviction::{Across, ActivePolicy};
pub(super) use scan_resistant::Candidates;
