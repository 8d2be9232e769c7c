//! *State*: what all clones of a cache share, and the changes to it that concern several shards.

mod cache_state;
mod commit;
mod fetch_threads;
#[cfg(all(test, loom))]
mod models;
mod pending_fetches;
mod sink;
mod space;
mod victim;

pub(super) use cache_state::{CacheState, Spread};
pub(super) use pending_fetches::FetchId;
pub(super) use sink::{Below, EvictionFn, EvictionSink, LowerTier};
pub(super) use victim::VictimSearch;
