//! *Tier*: what a cache offers to a lower tier, such as a disk.

mod invalidation;
mod lease;
mod lower_tier;

pub use lease::{Lease, Leased};
