//! *Leases*: how a cache and a lower tier stay consistent.

mod consistency;
mod invalidation;
mod lease;

#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use lease::{Lease, Leased};
