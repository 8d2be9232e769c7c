//! *Leases*: how a cache and a lower tier stay consistent.

mod consistency;
mod invalidation;
mod lease;

#[cfg(test)]
mod tests;

pub(super) use lease::{Lease, Leased};
