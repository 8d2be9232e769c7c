//! What the public face of cached spaces does at its edges.

use crate::offset::OffsetAllocator;

use super::{Extent, ExtentCache};

/// A space with these hot sizes and no others, of which all may be cached.
fn named(capacity: u64, hot: &[u64]) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).auto_hot_sizes(false);
    builder
        .hot_sizes(hot.iter().copied())
        .max_cached_bytes(capacity)
        .build()
        .expect("good settings")
}

/// Many small ranges are cached, each beside a longer one that is free: together they are one.
#[test]
fn the_hint_counts_what_lies_between_cached_ranges() {
    let space = named(100 * 101, &[1]);
    // The first free ends the sequential order, in which a refill of short ranges splits the long
    // ones.
    drop(space.allocate(100).unwrap());
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

/// Books of so many ranges, filled up by eight in use and others that are cached.
fn with_full_books(ranges: u32) -> (ExtentCache, Vec<Extent>) {
    let space = ExtentCache::builder(OffsetAllocator::builder(1 << 20).max_ranges(ranges));
    let space =
        space.hot_sizes([10]).auto_hot_sizes(false).max_cached_bytes(1 << 20).build().unwrap();
    let held: Vec<_> = (0..8).map(|_| space.allocate(1000).unwrap()).collect();
    let mut hot: Vec<_> = std::iter::from_fn(|| space.allocate(10).ok()).collect();
    // So that ranges in use keep what is cached apart on the books.
    let kept = hot.split_off(hot.len() - 1);
    drop(hot);
    assert!(space.stats().cached_ranges > 3, "{:?}", space.stats());
    (space, held.into_iter().chain(kept).collect())
}

#[test]
fn books_full_of_cached_ranges_are_not_full() {
    let (space, _held) = with_full_books(24);
    assert_eq!(space.allocate(500).map(|extent| extent.size()), Ok(500));
    let (_space, mut held) = with_full_books(24);
    assert_eq!(held[0].shrink(100), Ok(()));
    let (space, _held) = with_full_books(24);
    assert_eq!(space.grow(1 << 40), Ok(()));
    assert_eq!(space.allocate(1 << 39).map(|extent| extent.size()), Ok(1 << 39));
    let (_space, mut held) = with_full_books(24);
    let whole = held.remove(3);
    let start = whole.offset();
    let (left, right) = whole.free_range(start + 10..start + 20).expect("the caches are emptied");
    assert_eq!(
        (left.map(|left| left.size()), right.map(|right| right.size())),
        (Some(10), Some(980))
    );
}

/// Everything that a request could wait for is taken, and figures are read all the same. A lock
/// taken would be for ever.
#[test]
fn a_glance_takes_no_lock() {
    let space = named(1 << 20, &[4096]);
    let mut held: Vec<_> = (0..100).map(|_| space.allocate(4096).unwrap()).collect();
    held.truncate(40);
    let (metrics, stats) = (space.metrics(), space.stats());
    let seen = space.instance.magazines.frozen(|cached| {
        let _books = space.ground.seize();
        (space.glance(), space.stats(), space.capacity(), cached.len())
    });
    assert_eq!((&seen.1, seen.2, seen.3), (&stats, 1 << 20, stats.cached_ranges));
    let glance = seen.0;
    assert_eq!((glance.capacity, glance.allocated, glance.live), (1 << 20, 40 * 4096, 40));
    assert_eq!((glance.cached, glance.largest_free), (stats.cached_bytes, metrics.largest_free));
    assert!(glance.cached > 0, "nothing was cached");
}

#[test]
fn a_glance_knows_of_what_was_resized() {
    let space = named(1 << 20, &[4096]);
    let _held = space.allocate(70_000).unwrap();
    for capacity in [3 << 20, 1 << 22, 100_000] {
        if capacity > space.capacity() { space.grow(capacity) } else { space.shrink_to(capacity) }
            .unwrap();
        let glance = space.glance();
        assert_eq!(
            (glance.capacity, glance.allocated, space.capacity()),
            (capacity, 70_000, capacity)
        );
    }
}
