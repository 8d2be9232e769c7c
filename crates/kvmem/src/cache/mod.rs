#![doc = include_str!("../../docs/cache.md")]

mod builder;
mod error;
#[cfg(feature = "metrics")]
mod export;
mod fetch;
mod index;
mod insertion;
mod kv_cache;
mod leases;
mod policy;
mod prefix;
mod reservation;
mod source;
mod state;
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;

pub use builder::KvCacheBuilder;
pub use error::{KvCacheError, KvCacheSetupError, LowerTierError};
pub use fetch::Fetching;
pub use index::Pinned;
pub use kv_cache::KvCache;
pub use policy::{Eviction, EvictionPolicy, History, Slot};
pub use prefix::{PREFIX_KEY_BYTES, PrefixKey, prefix_keys};
pub use reservation::Reservation;
pub use stats::KvCacheStats;
