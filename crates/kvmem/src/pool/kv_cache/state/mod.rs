//! *State*: what all clones of a cache share, and the changes to it that concern several shards.

mod cache_state;
mod commit;
mod lower_tier;
mod sink;
mod space;
mod victim;

pub use lower_tier::{LowerTier, LowerTierError, TierRead};
pub use sink::EvictionOutcome;

pub(super) use cache_state::{CacheState, Spread};
pub(super) use sink::{Below, EvictionSink};
pub(super) use victim::Turn;
