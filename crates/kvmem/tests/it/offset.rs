//! L3: offsets.

use kvmem::offset::{Metrics, OffsetAllocator};

mod bad_input;
mod contention;
mod fixed;
mod fork;
mod handles;
mod metadata;
mod order;
mod properties;
mod reports;
mod segments;
mod shards;
pub(crate) mod soak;
mod too_many_ranges;
mod traps;

/// Returns a space with boundary, or without.
fn space(capacity: u64, boundary: Option<u64>) -> OffsetAllocator {
    let builder = OffsetAllocator::builder(capacity);
    boundary
        .map_or(builder.clone(), |boundary| builder.boundary(boundary))
        .build()
        .expect("a good space")
}

/// The figures that a failed call must not change: the ranges, but not how they are stored.
fn figures(metrics: Metrics) -> (u64, u64, u64, u64, u64) {
    (metrics.capacity, metrics.allocated, metrics.free, metrics.largest_free, metrics.live)
}
