#![doc = include_str!("../../../docs/kv_cache.md")]

mod builder;
mod cache;
mod error;
mod index;
mod insertion;
mod policy;
mod process;
mod reservation;
mod source;
mod state;
mod stats;
mod tier;

pub use builder::KvCacheBuilder;
pub use cache::KvCache;
pub use error::{KvCacheError, KvCacheSetupError};
pub use index::Pinned;
pub use policy::{Eviction, EvictionPolicy, Slot};
pub use reservation::{Reservation, Superseded};
pub use state::EvictionOutcome;
pub use stats::KvCacheStats;
pub use tier::{Lease, Leased, LowerTier, LowerTierError, TierRead};
