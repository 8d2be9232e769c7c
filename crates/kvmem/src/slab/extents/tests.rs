//! Edge cases of cached spaces, with access to private state.

use crate::offset::OffsetAllocator;

use super::{Extent, ExtentCache};

/// Makes a space with exactly these hot sizes, all of which may be cached.
fn named(capacity: u64, hot: &[u64]) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).auto_hot_sizes(false);
    builder
        .hot_sizes(hot.iter().copied())
        .max_cached_bytes(capacity)
        .build()
        .expect("valid settings")
}

/// Returns how many of 50 freed ranges are cached, of which a magazine holds four.
fn cached_of_fifty(shards: u32) -> usize {
    let space = named(256 << 20, &[4 << 20]);
    space.cut(shards);
    let all: Vec<_> = (0..50).map(|_| space.allocate(4 << 20).unwrap()).collect();
    drop(all);
    space.stats().cached_ranges
}

/// Above a cut space, small magazines are not exchanged.
#[test]
fn a_thread_calls_a_cut_space_and_not_the_depot() {
    assert_eq!(cached_of_fifty(4), 8, "two magazines");
    assert!(cached_of_fifty(1) > 8, "and those of the depot");
}

/// Many short cached ranges, each next to a longer free one, are one range together.
#[test]
fn the_hint_counts_free_ranges_between_cached_ones() {
    // A refill of short ranges splits a hole for long ones: the last may lie where none fits.
    let capacity = 100 * 101 + 200;
    let space = named(capacity, &[1]);
    let (mut cached, mut free) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        cached.push(space.allocate(1).unwrap());
        free.push(space.allocate(100).unwrap());
    }
    drop((cached, free));
    assert!(space.stats().cached_ranges > 0);
    assert_eq!(space.largest_free_hint(), capacity);
    assert_eq!(space.allocate(capacity).map(|whole| whole.len()), Ok(capacity));
}

/// Makes a space with metadata for `ranges` ranges: eight are in use, and the others are cached.
fn with_full_metadata(ranges: u32) -> (ExtentCache, Vec<Extent>) {
    let space = ExtentCache::builder(OffsetAllocator::builder(1 << 20).max_ranges(ranges));
    let space =
        space.hot_sizes([10]).auto_hot_sizes(false).max_cached_bytes(1 << 20).build().unwrap();
    let held: Vec<_> = (0..8).map(|_| space.allocate(1000).unwrap()).collect();
    let mut hot: Vec<_> = std::iter::from_fn(|| space.allocate(10).ok()).collect();
    // Ranges in use keep the cached ones from joining.
    let kept = hot.split_off(hot.len() - 1);
    drop(hot);
    assert!(space.stats().cached_ranges > 3, "{:?}", space.stats());
    (space, held.into_iter().chain(kept).collect())
}

#[test]
fn metadata_full_of_cached_ranges_is_reclaimed() {
    let (space, _held) = with_full_metadata(24);
    assert_eq!(space.allocate(500).map(|extent| extent.len()), Ok(500));
    let (_space, mut held) = with_full_metadata(24);
    assert_eq!(held[0].shrink(100), Ok(()));
    let (space, _held) = with_full_metadata(24);
    assert_eq!(space.grow_to(1 << 40), Ok(()));
    assert_eq!(space.allocate(1 << 39).map(|extent| extent.len()), Ok(1 << 39));
    let (_space, mut held) = with_full_metadata(24);
    let whole = held.remove(3);
    let start = whole.offset();
    let (left, right) = whole.free_range(start + 10..start + 20).expect("the caches are emptied");
    assert_eq!(
        (left.map(|left| left.len()), right.map(|right| right.len())),
        (Some(10), Some(980))
    );
}

/// Holds every lock that a request could wait for, and still reads the figures: taking a lock would
/// deadlock.
#[test]
fn a_snapshot_takes_no_lock() {
    let space = named(1 << 20, &[4096]);
    let mut held: Vec<_> = (0..100).map(|_| space.allocate(4096).unwrap()).collect();
    held.truncate(40);
    let (metrics, stats) = (space.metrics(), space.stats());
    let seen = space.instance.magazines.with_all_stopped(|cached| {
        let _metadata = space.space.lock_for_test();
        (space.snapshot(), space.stats(), space.capacity(), cached.len())
    });
    assert_eq!((&seen.1, seen.2, seen.3), (&stats, 1 << 20, stats.cached_ranges));
    let snapshot = seen.0;
    assert_eq!((snapshot.capacity, snapshot.allocated, snapshot.live), (1 << 20, 40 * 4096, 40));
    assert_eq!(
        (snapshot.cached, snapshot.largest_free),
        (stats.cached_bytes, metrics.largest_free)
    );
    assert!(snapshot.cached > 0, "nothing was cached");
}

#[test]
fn a_snapshot_follows_a_resize() {
    let space = named(1 << 20, &[4096]);
    let _held = space.allocate(70_000).unwrap();
    for capacity in [3 << 20, 1 << 22, 100_000] {
        if capacity > space.capacity() {
            space.grow_to(capacity)
        } else {
            space.shrink_to(capacity)
        }
        .unwrap();
        let snapshot = space.snapshot();
        assert_eq!(
            (snapshot.capacity, snapshot.allocated, space.capacity()),
            (capacity, 70_000, capacity)
        );
    }
}

/// After reclaims that followed each other closely, the detected sizes are forgotten for some time.
/// Then a size that is requested often is hot again, and stays it.
#[test]
fn a_size_is_hot_again_after_caching_did_not_pay_off() {
    let space = ExtentCache::builder(OffsetAllocator::builder(1 << 30)).build().unwrap();
    let is_hot = || !space.stats().classes.is_empty();
    let request = |n: usize| drop((0..n).map(|_| space.allocate(64)).collect::<Vec<_>>());
    let mut rounds = 0..200_000;
    assert!(rounds.any(|_| {
        request(1);
        is_hot()
    }));
    for _ in 0..40 {
        space.instance.magazines.reclaim(|| ());
    }
    // Of a size that is not hot, so the request reaches the space.
    let request_cold = || drop(space.allocate(100_000).unwrap());
    request_cold();
    assert!(!is_hot());
    assert!(rounds.any(|_| {
        request(1);
        is_hot()
    }));
    for _ in 0..100 {
        request(1000);
        request_cold();
        assert!(is_hot());
    }
}

/// Replaces ranges of random sizes at random, in a space that `live` of them fill to `percent` %,
/// if they have 7,936 bytes on average. Returns how many sizes are hot in the end.
fn hot_after(live: u64, percent: u64, exchanges: u64, size: impl Fn(u64) -> u64) -> usize {
    let capacity = live * 7936 * 100 / percent;
    let space = ExtentCache::new(capacity).unwrap();
    let (mut held, mut bytes, mut random) = (Vec::<Extent>::new(), 0, 1_u64);
    for _ in 0..exchanges {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let (size, mut victim) = (size(random >> 33), random >> 40);
        loop {
            if bytes + size <= capacity / 100 * percent
                && let Ok(extent) = space.allocate(size)
            {
                held.push(extent);
                bytes += size;
                break;
            }
            let freed = held.swap_remove(victim as usize % held.len());
            bytes -= freed.len();
            victim = victim.wrapping_mul(31);
        }
    }
    space.check().unwrap();
    space.stats().classes.len()
}

#[test]
fn sizes_are_cold_where_most_operations_are_slow() {
    let sixteen = |random| 4096 + random % 16 * 512;
    // A full space reclaims; magazines of one range each miss.
    assert_eq!(hot_after(1000, 100, 30_000, sixteen), 0);
    assert_eq!(hot_after(1000, 75, 30_000, sixteen), 0);
    // Here both pay off: a bound of many ranges, and free bytes for each size.
    assert_eq!(hot_after(20_000, 75, 80_000, sixteen), 16);
}

/// A caller repeats a request until it has freed enough. That makes no size hot.
#[test]
fn requests_that_fail_make_no_size_hot() {
    assert_eq!(hot_after(1000, 100, 4000, |random| 1024 + random % 13_824), 0);
}

/// Named sizes become cold, too, and are hot again after the pause, without others.
#[test]
fn named_sizes_are_hot_again_after_a_pause() {
    let space = named(1 << 30, &[64, 128]);
    let sizes = || space.stats().classes.iter().map(|class| class.size).collect::<Vec<_>>();
    for (pauses, cold) in [1 << 16, 1 << 17].into_iter().enumerate() {
        // The first one follows puts of another space that had the same caches.
        for _ in 0..9 {
            space.instance.magazines.reclaim(|| ());
        }
        // Of a size that is not hot, so the request reaches the space.
        drop(space.allocate(100_000).unwrap());
        assert!(sizes().is_empty());
        let requests = (0..1 << 20).take_while(|_| {
            drop(space.allocate(4096).unwrap());
            assert_eq!(space.stats().cached_ranges, 0);
            sizes().is_empty()
        });
        assert_eq!(requests.count() + 1, cold, "pause {pauses}");
        assert_eq!(sizes(), [64, 128]);
        drop(space.allocate(64).unwrap());
        assert!(space.stats().cached_ranges > 0);
    }
}
