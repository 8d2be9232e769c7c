//! *Tier*: what a cache offers to a lower tier, such as a disk.

mod invalidation;
mod lease;

pub use lease::{Lease, Leased, Superseded};

pub(super) use invalidation::{CacheInvalidationGuard, InvalidationGuard};
