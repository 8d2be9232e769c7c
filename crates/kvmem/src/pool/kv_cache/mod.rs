#![doc = include_str!("../../../docs/kv_cache.md")]

mod access_buffer;
mod builder;
mod cache;
mod charged;
mod clock;
mod entry;
mod error;
mod evicted;
mod invalidation;
mod lease;
mod leases;
mod lru;
mod policy;
mod process;
mod reservation;
mod reuse;
mod rings;
mod scan_resistant;
mod shadow_lru;
mod shard;
mod source;
mod space;
mod stats;
mod usage;

pub use builder::KvCacheBuilder;
pub use cache::KvCache;
pub use entry::Pinned;
pub use error::{KvCacheError, KvCacheSetupError};
pub use evicted::EvictionOutcome;
pub use lease::{Lease, Leased, Superseded};
pub use policy::{Eviction, EvictionPolicy, Slot};
pub use reservation::Reservation;
pub use stats::KvCacheStats;
