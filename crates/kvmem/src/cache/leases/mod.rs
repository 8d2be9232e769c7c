//! *Leases*: how a cache and a lower tier stay consistent.

mod consistency;
mod invalidation;
mod lease;

pub use lease::{Lease, Leased};
