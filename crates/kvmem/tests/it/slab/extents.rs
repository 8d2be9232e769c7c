//! Cached spaces: which sizes are hot, what a request reclaims, and how long the parts live.

use kvmem::offset::{AllocError, OffsetAllocator, SpaceError};
use kvmem::slab::{Extent, ExtentCache, ExtentSetupError, ExtentState};

use super::named;

fn hot_sizes(space: &ExtentCache) -> Vec<(u64, bool)> {
    space.stats().classes.iter().map(|class| (class.size, class.named)).collect()
}

/// Requests a size often enough for it to become hot.
fn request_often(space: &ExtentCache, size: u64) {
    (0..20).for_each(|_| drop(space.allocate(size).unwrap()));
}

#[test]
fn named_sizes_are_cached_from_the_beginning() {
    let space = named(1 << 30, &[4096, 100, 4096]);
    assert_eq!(hot_sizes(&space), [(100, true), (4096, true)]);
    for size in [100, 4096, 4095, 4097] {
        drop(space.allocate(size).unwrap());
    }
    let stats = space.stats();
    let cached: Vec<bool> =
        stats.classes.iter().map(|class| class.in_threads + class.in_depot > 0).collect();
    assert_eq!(cached, [true, true]);
    request_often(&space, 77);
    assert_eq!(hot_sizes(&space).len(), 2, "no size is detected");
    assert_eq!(
        (space.metrics().allocated, space.metrics().live, space.metrics().free),
        (0, 0, 1 << 30)
    );
    assert!(
        stats.cached_bytes <= stats.charged_bytes && stats.charged_bytes <= stats.max_cached_bytes
    );
}

#[test]
fn sizes_are_detected_and_forgotten() {
    let space = ExtentCache::new(1 << 40).unwrap();
    for size in 1..=32 {
        request_often(&space, size * 1000);
    }
    assert_eq!(hot_sizes(&space).len(), 32);
    request_often(&space, 7);
    assert!(!hot_sizes(&space).contains(&(7, false)), "all classes are taken");
    let held = space.allocate(1000).unwrap();
    let mut requested = 0;
    while !hot_sizes(&space).contains(&(7, false)) {
        drop(space.allocate(7).unwrap());
        requested += 1;
        assert!(requested < 100_000);
    }
    assert_eq!(hot_sizes(&space), [(7, false)]);
    // Of a size that is no longer hot.
    drop(held);
    space.trim();
    assert_eq!((space.metrics().allocated, space.metrics().largest_free), (0, 1 << 40));
    space.check().unwrap();
}

/// A store that restarts allocates what it had again, in the order of its addresses.
#[test]
fn nothing_is_cached_before_the_first_free() {
    let space = ExtentCache::builder(OffsetAllocator::builder(1 << 20))
        .hot_sizes_after_first_free()
        .build()
        .unwrap();
    let mut end = 0;
    let mut live = Vec::new();
    for i in 0..300 {
        let extent = space.allocate(if i % 3 == 0 { 1000 } else { 64 }).unwrap();
        assert_eq!(extent.offset(), end);
        end += extent.len();
        live.push(extent);
    }
    assert_eq!(hot_sizes(&space), []);
    drop(live.pop());
    request_often(&space, 64);
    assert_eq!(hot_sizes(&space), [(64, false)]);
}

#[test]
fn sizes_that_cannot_be_hot_return_errors() {
    let build = |sizes: Vec<u64>, max_cached_bytes: Option<u64>| {
        let builder = ExtentCache::builder(OffsetAllocator::builder(1 << 40)).hot_sizes(sizes);
        max_cached_bytes
            .map_or(builder.clone(), |bytes| builder.max_cached_bytes(bytes))
            .build()
            .map(drop)
    };
    let error = |requested, max| Err(ExtentSetupError::HotSize { requested, max });
    assert_eq!(build(vec![0], None), error(0, u64::from(u32::MAX) - 1));
    assert_eq!(build(vec![1 << 32], None), error(1 << 32, u64::from(u32::MAX) - 1));
    assert_eq!(
        build(vec![u64::from(u32::MAX)], None),
        error(u64::from(u32::MAX), u64::from(u32::MAX) - 1)
    );
    assert_eq!(build(vec![u64::from(u32::MAX) - 1], None), Ok(()));
    assert_eq!(build(vec![100, 101], Some(100)), error(101, 100));
    assert_eq!(build(vec![1], Some(0)), error(1, 0));
    assert_eq!(build((1..=32).collect(), None), Ok(()));
    assert_eq!(
        build((1..=33).collect(), None),
        Err(ExtentSetupError::HotSizes { requested: 33, max: 32 })
    );
    let error = ExtentCache::builder(OffsetAllocator::builder(0)).build().map(drop);
    assert_eq!(
        error,
        Err(ExtentSetupError::Space(SpaceError::Capacity { requested: 0, limit: 1 << 63 }))
    );
    assert_eq!(
        ExtentCache::new(0).map(drop),
        Err(SpaceError::Capacity { requested: 0, limit: 1 << 63 })
    );
}

#[test]
fn sizes_of_4_gib_and_more_are_not_cached() {
    let space = ExtentCache::builder(OffsetAllocator::builder(1 << 45))
        .max_cached_bytes(1 << 44)
        .build()
        .unwrap();
    for size in [(1 << 32) - 2, (1 << 32) - 1, 1 << 32, (1 << 32) + 4096, 3 << 32] {
        for _ in 0..20 {
            let extent = space.allocate(size).unwrap();
            assert_eq!((extent.len(), extent.range().end), (size, extent.offset() + size));
            let raw = space.allocate_raw(size).unwrap();
            assert_eq!(space.resolve_raw(raw.handle), Ok(raw.offset..raw.offset + size));
            assert_eq!(space.free_raw(raw.handle), Ok(size));
        }
    }
    assert_eq!(hot_sizes(&space), [((1 << 32) - 2, false)]);
    let raw = space.allocate_raw(1 << 33).unwrap();
    assert_eq!(space.shrink_raw(raw.handle, 5), Ok(()));
    assert_eq!(space.resolve_raw(raw.handle), Ok(raw.offset..raw.offset + 5));
    assert_eq!(space.extend_raw(raw.handle, 1 << 34), Ok(()));
    assert_eq!(space.resolve_raw(raw.handle), Ok(raw.offset..raw.offset + (1 << 34)));
    assert_eq!(space.adopt_raw(raw.handle).map(|extent| extent.len()), Ok(1 << 34));
    assert_eq!(space.metrics().allocated, 0);
}

#[test]
fn the_map_shows_cached_ranges() {
    let space = named(10_000, &[100]);
    let kept = space.allocate(50).unwrap();
    let cached = space.allocate(100).unwrap().range();
    let map = space.map();
    let state = |at: u64| {
        map.iter().find(|range| range.offset == at).map(|range| (range.size, range.state))
    };
    assert_eq!(state(kept.offset()), Some((50, ExtentState::Used)));
    assert_eq!(state(cached.start), Some((100, ExtentState::Cached)));
    assert_eq!(map.iter().map(|range| range.size).sum::<u64>(), 10_000);
    space.trim();
    assert!(space.map().iter().all(|range| range.state != ExtentState::Cached));
}

/// Long ranges have all of the bound when short ones come, and the other way round.
#[test]
fn short_ranges_are_cached_although_long_ones_have_the_bound() {
    const SHORT: u64 = 4096;
    const LONG: u64 = 512 << 10;
    let space = ExtentCache::builder(OffsetAllocator::builder(128 << 20))
        .auto_hot_sizes(false)
        .hot_sizes([SHORT, LONG])
        .build()
        .expect("valid settings");
    let use_all = |size: u64| {
        let held: Vec<Extent> = (0..200).map(|_| space.allocate(size).unwrap()).collect();
        drop(held);
        space.stats()
    };
    let stats = use_all(LONG);
    // The rest of the bound does not allow a magazine of short ranges.
    let before = stats.classes[0];
    assert!(stats.charged_bytes + before.magazine as u64 * SHORT > stats.max_cached_bytes);
    (0..1000).for_each(|_| drop(space.allocate(SHORT).unwrap()));
    let stats = space.stats();
    let short = stats.classes[0];
    // The counters go on from those of an earlier space.
    assert!(short.in_threads > 0 && short.refills < before.refills + 3, "{stats:?}");
    assert!(stats.charged_bytes <= stats.max_cached_bytes, "{stats:?}");
    // Long ranges get what is left, and take nothing from short ones.
    let before = use_all(SHORT).classes[0];
    let stats = use_all(LONG);
    let after = stats.classes[0];
    assert_eq!(after.in_threads + after.in_depot, before.in_threads + before.in_depot, "{stats:?}");
    assert!(stats.charged_bytes <= stats.max_cached_bytes, "{stats:?}");
    space.check().unwrap();
}

#[test]
fn the_bound_follows_the_capacity() {
    let space = ExtentCache::new(1 << 20).unwrap();
    assert_eq!(space.stats().max_cached_bytes, (1 << 20) / 32);
    space.grow_to(1 << 40).unwrap();
    assert_eq!(space.stats().max_cached_bytes, (1 << 40) / 32);
    // A size that is hot only under the new bound.
    request_often(&space, 1 << 30);
    assert_eq!(hot_sizes(&space), [(1 << 30, false)]);
    space.shrink_to(1 << 20).unwrap();
    assert_eq!(space.stats().max_cached_bytes, (1 << 20) / 32);
    request_often(&space, 1 << 19);
    assert_eq!(hot_sizes(&space), [(1 << 30, false)]);
    let fixed = named(1 << 20, &[]);
    fixed.grow_to(1 << 30).unwrap();
    assert_eq!(fixed.stats().max_cached_bytes, 1 << 20);
}

/// Two sizes that share a full space keep reclaiming each other's cached ranges. Then both become
/// cold for some time, and reclaims are rare.
#[test]
fn sizes_that_share_a_full_space_reclaim_rarely() {
    const STEPS: u64 = 40_000;
    let reclaims = || {
        let space = named(64 * 128, &[64, 128]);
        let mut held: Vec<Extent> = Vec::new();
        for step in 0..STEPS {
            // Always full, and a freed range is of the other size in half of the cases.
            let size = if step / 3 % 2 == 0 { 64 } else { 128 };
            loop {
                match space.allocate(size) {
                    Ok(extent) => break held.push(extent),
                    Err(AllocError::OutOfSpace { .. }) => {
                        drop(held.swap_remove((step * 7919) as usize % held.len()))
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
        space.stats().reclaims
    };
    // A space reuses the core of one that another test has dropped. While the dropping thread is
    // preempted in its last step, every failed request here reclaims: see "Checking" in
    // `reclaim.rs`. So one good run of several is enough.
    let found: Vec<u64> = (0..5).map(|_| reclaims()).collect();
    assert!(found.iter().all(|&reclaims| reclaims > 0), "{found:?}");
    assert!(found.iter().any(|&reclaims| reclaims < STEPS / 50), "{found:?}");
}
