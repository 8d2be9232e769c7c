#![doc = include_str!("../../../docs/kv_cache.md")]

mod builder;
mod cache;
mod charged;
mod clock;
mod error;
mod evicted;
mod forgetting;
mod held;
mod lease;
mod leases;
mod ledger;
mod lru;
mod policy;
mod process;
mod reservation;
mod reuse;
mod rings;
mod room;
mod scan_resistant;
mod shadow_lru;
mod shard;
mod source;
mod stats;
mod uses;

pub use builder::KvCacheBuilder;
pub use cache::KvCache;
pub use error::{KvCacheError, KvCacheSetupError};
pub use evicted::EvictionOutcome;
pub use held::Pinned;
pub use lease::{Lease, Leased, Superseded};
pub use policy::{Eviction, Policy, Slot};
pub use reservation::Reservation;
pub use stats::KvCacheStats;
