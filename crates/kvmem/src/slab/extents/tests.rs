//! What the public face of cached spaces does at its edges.

use crate::offset::{AllocError, OffsetAllocator};

use super::{Extent, ExtentCache, ExtentSetupError};

/// A space with these hot sizes and no others, of which all may be cached.
fn named(capacity: u64, hot: &[u64]) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).learn(false);
    builder.hot_sizes(hot.iter().copied()).stranded(capacity).build().expect("good settings")
}

/// Many small ranges are cached, each beside a longer one that is free: together they are one.
#[test]
fn the_hint_counts_what_lies_between_cached_ranges() {
    let space = named(100 * 101, &[1]);
    let (mut cached, mut free) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        cached.push(space.allocate(1).unwrap());
        free.push(space.allocate(100).unwrap());
    }
    drop((cached, free));
    assert!(space.stats().cached_ranges > 0);
    assert_eq!(space.largest_free_hint(), 100 * 101);
    assert_eq!(space.allocate(100 * 101).map(|whole| whole.size()), Ok(100 * 101));
}
