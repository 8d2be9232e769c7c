//! *Index*: the entries of a cache by key, in shards.

mod access_buffer;
mod charged;
mod entry;
mod leases;
mod shard;
mod usage;

pub use entry::Pinned;

pub(super) use charged::Charged;
pub(super) use entry::CacheEntry;
pub(super) use leases::UntrustedKeys;
pub(super) use shard::{Shard, ShardState, StripeState};
pub(super) use usage::{CacheLimits, Usage};
