//! *Index*: the entries of a cache by key, in shards.

mod access_buffer;
mod charged;
mod entry;
pub(super) mod leases;
#[cfg(all(test, loom))]
mod models;
mod shard;
mod shard_state;
mod usage;

pub use entry::Pinned;

pub(super) use charged::{Charged, ValueSpace};
pub(super) use entry::CacheEntry;
pub(super) use leases::UntrustedKeys;
pub(super) use shard::{Shard, StripeState};
pub(super) use shard_state::ShardState;
pub(super) use usage::{CacheLimits, Usage};
