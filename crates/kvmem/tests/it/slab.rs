//! L4: objects.

mod blocks;
mod debug;
mod extents;
mod extents_fork;
mod extents_properties;
mod extents_raw;
mod extents_threads;
mod fork;
mod objects;
mod pages;
mod sequences;
mod threads;

use kvmem::offset::OffsetAllocator;
use kvmem::slab::ExtentCache;

/// Makes a space with exactly these hot sizes, all of which may be cached.
fn named(capacity: u64, hot: &[u64]) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).auto_hot_sizes(false);
    let builder = builder.hot_sizes(hot.iter().copied()).max_cached_bytes(capacity);
    builder.build().expect("valid settings")
}
