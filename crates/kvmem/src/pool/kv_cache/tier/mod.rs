//! *Tier*: what a cache offers to a lower tier, such as a disk.

mod attached;
mod invalidation;
mod lease;
mod lower_tier;

pub use attached::{LowerTier, LowerTierError, TierRead};
pub use lease::{Lease, Leased};
