//! Spaces with shards: against the oracle and at their edges.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kvmem::offset::{
    AllocError, Allocation, OffsetAllocator, RawError, ShardedAllocator, SpaceError,
};
use kvmem_testkit::driver;
use kvmem_testkit::driver::sharded::without_unsupported;
use kvmem_testkit::op::{Config, Op};
use kvmem_testkit::random::Random;
use kvmem_testkit::strategy::{Scale, config, mixed_ops, ops};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::child::forked;
use crate::random::cases;

/// Makes a space with a boundary, which shards are cut at.
fn with_boundary(config: Config) -> Config {
    let boundary = config.boundary.unwrap_or(config.capacity / 5).clamp(1, config.capacity);
    Config { boundary: Some(boundary), max_ranges: None, cache: None, ..config }
}

/// Makes a space of shards of one length, which stands in place of the boundary.
fn with_equal_shards(config: Config) -> Config {
    // Up to 9 shards of 64 to 127 units, each a power of two, so that the cuts are exact.
    let shards = 1 + config.capacity % 9;
    let unit = 1 << (config.capacity / 127 / shards).max(1).ilog2().min(52);
    let shard = unit * (64 + config.capacity / 9 % 64);
    Config {
        capacity: shards * shard,
        boundary: Some(shard),
        max_ranges: None,
        cache: None,
        ..config
    }
}

fn check<const BOUNDARY: bool>(
    config: Config,
    ops: Vec<Op>,
    of: fn(Config) -> Config,
) -> TestCaseResult {
    driver::run_sharded::<BOUNDARY>(&of(config), &without_unsupported(ops, of))
        .map(drop)
        .map_err(|failure| TestCaseError::fail(failure.to_string()))
}

fn any_config() -> impl Strategy<Value = Config> {
    prop_oneof![config(Scale::Small), config(Scale::Medium), config(Scale::Huge)]
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn shards_at_boundaries(config in any_config(), ops in ops(120)) {
        check::<true>(config, ops, with_boundary)?;
    }

    #[test]
    fn shards_of_one_length(config in any_config(), ops in ops(120)) {
        check::<false>(config, ops, with_equal_shards)?;
    }

    #[test]
    fn crumbs_beside_bulk_in_shards(config in config(Scale::Medium), ops in mixed_ops(200)) {
        check::<false>(config, ops, with_equal_shards)?;
    }
}

fn sharded(capacity: u64, shards: u32) -> ShardedAllocator {
    OffsetAllocator::builder(capacity).shards(shards).build().expect("a good space")
}

/// Returns the shard that an offset is in, of shards of `len` bytes.
fn shards_of<'a>(held: impl IntoIterator<Item = &'a Allocation>, len: u64) -> BTreeSet<u64> {
    held.into_iter().map(|allocation| allocation.offset() / len).collect()
}

/// A range in a short shard cannot be extended to what others could allocate; what no shard could
/// is too large.
#[test]
fn an_extension_is_too_large_by_the_limit_of_the_space() {
    let space = OffsetAllocator::builder(8).boundary(5).shards(2).build().expect("two shards");
    // The home of the thread is any shard.
    let held: Vec<Allocation> = (0..8).map(|_| space.allocate(1).unwrap()).collect();
    let in_short = held.into_iter().filter(|one| one.offset() >= 5).min_by_key(Allocation::offset);
    let mut range = in_short.expect("three bytes are in the short shard");
    assert_eq!(range.extend(3), Ok(()));
    let (requested, limit) = (4, 5);
    assert_eq!(range.extend(4), Err(AllocError::CannotExtend { requested, max: 3 }));
    assert_eq!(range.extend(6), Err(AllocError::TooLarge { requested: 6, limit }));
    let raw = space.allocate_raw(4).unwrap();
    assert!(raw.offset < 5, "the first shard is free");
    space.extend_raw(raw.handle, 5).unwrap();
    let beyond = space.extend_raw(raw.handle, 6).unwrap_err();
    assert_eq!(beyond, RawError::Failed(AllocError::TooLarge { requested: 6, limit }));
    space.free_raw(raw.handle).unwrap();
}

#[test]
fn a_thread_fills_its_shard_and_then_the_others() {
    let space = sharded(8 * 4096, 8);
    let mut held = Vec::new();
    for filled in 0..8 {
        for _ in 0..4 {
            held.push(space.allocate(1024).unwrap());
        }
        assert_eq!(shards_of(&held, 4096).len(), filled + 1);
    }
    let failed = AllocError::OutOfSpace { requested: 1, free: 0, largest_free: 0 };
    assert_eq!(space.allocate(1).unwrap_err(), failed);
    assert_eq!(space.allocate_aligned(1, 64).unwrap_err(), failed);
    assert_eq!(space.allocate_raw(1).unwrap_err(), failed);
    // The only room is wherever something is freed.
    while let Some(one) = held.pop() {
        let range = one.range();
        drop(one);
        assert_eq!(space.allocate(1024).unwrap().range(), range);
    }
    assert_eq!(space.metrics().largest_free, 4096);
    space.check().unwrap();
}

/// While threads contend for a shard, its hint is its length. An error does not repeat it.
#[test]
fn an_error_of_a_contended_space_has_its_longest_free_range() {
    let space = sharded(2 << 20, 2);
    let mut held: Vec<Allocation> = (0..2 << 10).map(|_| space.allocate(1024).unwrap()).collect();
    held.truncate(1 << 10);
    let mut holes: Vec<Allocation> = (0..2 << 10).map(|_| space.allocate(512).unwrap()).collect();
    // Of neighbours, one is freed: they need not have been allocated one after the other.
    holes.sort_by_key(Allocation::offset);
    let full = AllocError::OutOfSpace { requested: 1024, free: 512 << 10, largest_free: 512 };
    // The iterator frees the ranges that it skips.
    let _kept: Vec<Allocation> = holes.into_iter().step_by(2).collect();
    let is_contended = || space.largest_free_hint() == 1 << 20;
    let deadline = Instant::now() + Duration::from_secs(60);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(space.map().len() > 1 << 10);
                }
            });
        }
        let mut seen = 0;
        while seen < 10 && Instant::now() < deadline {
            let before = is_contended();
            let failed = space.allocate(1024).map(|found| found.range());
            over.store(failed != Err(full), Ordering::Relaxed);
            assert_eq!(failed, Err(full));
            seen += u32::from(before && is_contended());
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(seen, 10, "threads contend");
    });
}

#[test]
fn threads_begin_in_different_shards() {
    let space = sharded(16 * 4096, 16);
    let held: Vec<Allocation> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| space.allocate(16).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Threads of other tests are numbered meanwhile, so two may share a shard by chance, but not
    // all of them.
    assert!(shards_of(&held, 4096).len() > 1, "{held:?}");
}

#[test]
fn requests_that_no_shard_can_serve_name_the_reason() {
    let space = sharded(1 << 20, 4);
    assert_eq!((space.shards(), space.longest_shard(), space.capacity()), (4, 1 << 18, 1 << 20));
    let too_short = |requested| AllocError::ShardTooShort { requested, shard: 1 << 18 };
    for size in [(1 << 18) + 1, 1 << 20, u64::MAX] {
        assert_eq!(space.allocate(size).unwrap_err(), too_short(size));
        assert_eq!(space.allocate_aligned(size, 4096).unwrap_err(), too_short(size));
        assert_eq!(space.allocate_raw(size).unwrap_err(), too_short(size));
        assert_eq!(space.allocate_batch(size, 2).unwrap_err(), too_short(size));
    }
    let text = too_short(1 << 19).to_string();
    for part in ["524288", "262144", "fewer shards"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(space.allocate(0).unwrap_err(), AllocError::ZeroSize);
    assert_eq!(space.allocate_batch(0, 3).unwrap_err(), AllocError::ZeroSize);
    assert!(space.allocate_batch(0, 0).unwrap().is_empty());
    assert_eq!(space.allocate_aligned(8, 3).unwrap_err(), AllocError::BadAlign { align: 3 });
    assert_eq!(space.metrics().allocated, 0);

    // Where the boundary is what limits, it is named.
    let space = OffsetAllocator::builder(1 << 20).boundary(1 << 16).shards(4).build().unwrap();
    let error = space.allocate((1 << 16) + 1).unwrap_err();
    assert_eq!(error, AllocError::TooLarge { requested: (1 << 16) + 1, limit: 1 << 16 });
}

#[test]
fn the_longest_shard_serves_what_the_others_cannot() {
    // 10 segments: shards of 3, 3 and 4.
    let space = OffsetAllocator::builder(1000).boundary(100).shards(3).build().unwrap();
    assert_eq!(space.longest_shard(), 400);
    let lengths: Vec<u64> = space.shard_metrics().iter().map(|shard| shard.capacity).collect();
    assert_eq!(lengths, [300, 300, 400]);
    // Without a boundary, a granule of 1 byte makes one shard longer.
    let space = sharded(10, 3);
    assert_eq!(space.allocate(4).unwrap().range(), 6..10);
    assert_eq!(
        space.allocate(5).unwrap_err(),
        AllocError::ShardTooShort { requested: 5, shard: 4 }
    );
}

#[test]
fn a_batch_takes_as_many_shards_as_it_needs_or_none() {
    let space = sharded(4 << 10, 4);
    let home = space.allocate_batch(100, 10).unwrap();
    assert_eq!(shards_of(&home, 1 << 10).len(), 1);
    // Ten fit into each shard: thirty are left.
    let failed = space.allocate_batch(100, 31).unwrap_err();
    let expected =
        AllocError::OutOfSpace { requested: 3100, free: 4096 - 1000, largest_free: 1024 };
    assert_eq!(failed, expected);
    assert_eq!((space.metrics().live, space.metrics().largest_free), (10, 1024));
    let rest = space.allocate_batch(100, 30).unwrap();
    assert_eq!((rest.len(), shards_of(&rest, 1 << 10).len()), (30, 3));
    assert!(space.allocate_batch(100, 1).is_err());
    space.check().unwrap();
    let strangers = sharded(4 << 10, 2).allocate_batch(7, 3).unwrap();
    // Shuffled: runs of each shard, and of another space.
    let mut all: Vec<Allocation> = home.into_iter().chain(rest).chain(strangers).collect();
    let mut random = Random::new(5);
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i as u64 + 1) as usize);
    }
    space.free_batch(all);
    assert_eq!((space.metrics().live, space.metrics().largest_free), (0, 1024));
    space.check().unwrap();
}

#[test]
fn the_limit_of_ranges_is_that_of_all_shards() {
    let limited = |ranges| OffsetAllocator::builder(1 << 20).max_ranges(ranges).shards(4).build();
    assert_eq!(limited(63).unwrap_err(), SpaceError::MaxRanges { requested: 63, min: 64 });
    let space = limited(64).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match space.allocate(16) {
            Ok(one) => held.push(one),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AllocError::TooManyRanges { ranges } if ranges <= 16), "{error:?}");
    assert!((48..=64).contains(&held.len()), "{}", held.len());
    assert_eq!(shards_of(&held, 1 << 18).len(), 4);
    assert!(matches!(space.allocate_batch(16, 9), Err(AllocError::TooManyRanges { .. })));
}

#[test]
fn settings_without_shards_are_errors() {
    let build = |capacity, shards| OffsetAllocator::builder(capacity).shards(shards).build();
    let error = |requested, max| SpaceError::Shards { requested, max };
    assert_eq!(build(1 << 20, 0).unwrap_err(), error(0, 1024));
    assert_eq!(build(1 << 20, 1025).unwrap_err(), error(1025, 1024));
    assert_eq!(build(3, 4).unwrap_err(), error(4, 3));
    assert!(matches!(build(0, 2), Err(SpaceError::Capacity { requested: 0, .. })));
    let cut = OffsetAllocator::builder(100).boundary(60).shards(3).build();
    assert_eq!(cut.unwrap_err(), error(3, 2));
    let zero = OffsetAllocator::builder(100).boundary(0).shards(3).build();
    assert_eq!(zero.unwrap_err(), SpaceError::ZeroBoundary);
}

#[test]
fn raw_handles_find_their_shard() {
    let space = sharded(4 << 10, 4);
    let all: Vec<_> = (0..4).map(|_| space.allocate_raw(1024).unwrap()).collect();
    let mut listed = space.raw_allocations();
    assert!(listed.is_sorted_by_key(|raw| raw.offset));
    for raw in all {
        assert_eq!(space.resolve_raw(raw.handle), Ok(raw.offset..raw.offset + 1024));
        let at = listed.iter().position(|one| *one == raw).expect("it is alive");
        listed.remove(at);
        space.shrink_raw(raw.handle, 24).unwrap();
        space.extend_raw(raw.handle, 512).unwrap();
        if raw.offset == 0 {
            assert_eq!(space.free_raw(raw.handle), Ok(512));
        } else {
            assert_eq!(space.adopt_raw(raw.handle).unwrap().range(), raw.offset..raw.offset + 512);
        }
        assert!(matches!(space.free_raw(raw.handle), Err(RawError::Stale { .. })));
    }
    assert!(listed.is_empty() && space.metrics().live == 0);
}

/// All of a space stays in use, so each request is served by the shard where another thread has
/// just freed a range of its size, wherever that is.
#[test]
fn a_request_is_served_while_any_shard_can() {
    const SIZE: u64 = 1024;
    let space = sharded(16 * SIZE, 4);
    let (give, take) = mpsc::channel::<Allocation>();
    let mut all = space.allocate_batch(SIZE, 16).unwrap();
    thread::scope(|scope| {
        let space = &space;
        scope.spawn(move || {
            let mut kept = Vec::new();
            for freed in take {
                let range = freed.range();
                drop(freed);
                kept.push(space.allocate(SIZE).expect("it has just been freed"));
                assert_eq!(kept.last().map(Allocation::range), Some(range), "no other is free");
            }
        });
        while let Some(one) = all.pop() {
            give.send(one).unwrap();
        }
        drop(give);
    });
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_uses_every_shard() {
    let space = sharded(1 << 20, 4);
    let held = space.allocate_batch(1 << 17, 7).unwrap();
    let mut inherited = Some(held);
    let status = forked(|| {
        drop(inherited.take());
        let all = space.allocate_batch(1 << 17, 8);
        let full = space.allocate(1).is_err();
        i32::from(!(all.is_ok_and(|all| all.len() == 8) && full && space.check().is_ok()))
    });
    assert_eq!(status, 0);
    assert_eq!(space.metrics().live, 7);
    drop(inherited);
    assert_eq!(space.metrics().live, 0);
}
