//! The parts of a cache that `tests/loom` checks: its leases, and the ages that shards publish. The
//! rest of the layer needs the kernel, of which loom has no model.

#[path = "kv_cache/policy/clock.rs"]
mod clock;
#[path = "kv_cache/index/leases.rs"]
mod leases;

pub use clock::{AgeClock, EvictedCount, NONE, ORDERS, Oldest, Rank, Time, time_of};
pub use leases::{Leases, UntrustedKeys};
