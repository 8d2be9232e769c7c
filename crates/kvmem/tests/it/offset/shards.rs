//! Spaces that are cut into shards: against the oracle, and at their edges.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use kvmem::offset::{
    AllocError, Allocation, MapRange, OffsetAllocator, RawError, RawHandle, SpaceError,
};
use kvmem::slab::ExtentCache;
use kvmem_testkit::driver;
use kvmem_testkit::op::{Config, Op};
use kvmem_testkit::strategy::{Scale, cached_config, config, mixed_ops, ops, paged_ops};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::child::forked;
use crate::random::cases;

fn check(config: Config, ops: &[Op]) -> TestCaseResult {
    // A shard has a part of the limit of ranges for itself.
    let unlimited = |config: Config| Config { max_ranges: None, ..config };
    let ops: Vec<Op> = ops
        .iter()
        .map(|op| match *op {
            Op::Replace(config) => Op::Replace(unlimited(config)),
            op => op,
        })
        .collect();
    driver::run_sharded(&unlimited(config), &ops)
        .map(drop)
        .map_err(|failure| TestCaseError::fail(failure.to_string()))
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn small_spaces(config in config(Scale::Small), ops in ops(120)) {
        check(config, &ops)?;
    }

    #[test]
    fn medium_spaces(config in config(Scale::Medium), ops in ops(120)) {
        check(config, &ops)?;
    }

    #[test]
    fn huge_spaces(config in config(Scale::Huge), ops in ops(120)) {
        check(config, &ops)?;
    }

    #[test]
    fn crumbs_beside_bulk(config in config(Scale::Medium), ops in mixed_ops(200)) {
        check(config, &ops)?;
    }

    #[test]
    fn caches_above_shards(config in cached_config(Scale::Medium), ops in paged_ops(120)) {
        check(config, &ops)?;
    }
}

fn sharded(capacity: u64, shards: u32) -> OffsetAllocator {
    OffsetAllocator::builder(capacity).shards(shards).build().expect("a good space")
}

/// Returns the shard that an offset is in, of shards of `len` bytes.
fn shards_of<'a>(held: impl IntoIterator<Item = &'a Allocation>, len: u64) -> BTreeSet<u64> {
    held.into_iter().map(|allocation| allocation.offset() / len).collect()
}

/// Allocations of before the cut, owned and raw, are freed, resized and resolved after it.
#[test]
fn handles_of_before_the_cut_stay_valid() {
    let space = OffsetAllocator::new(1 << 20).unwrap();
    let mut held: Vec<Allocation> = (0..64).map(|_| space.allocate(4096).unwrap()).collect();
    let raws: Vec<_> = (0..64).map(|_| space.allocate_raw(4096).unwrap()).collect();
    space.cut(5);
    assert_eq!(space.shards(), 5);
    space.check().unwrap();
    for one in &mut held {
        one.shrink(1024).unwrap();
        one.extend(4096).unwrap();
    }
    assert_eq!(space.raw_allocations(), raws);
    let later: Vec<_> = (0..32).map(|_| space.allocate_raw(4096).unwrap()).collect();
    for raw in raws.iter().chain(&later) {
        assert_eq!(space.resolve_raw(raw.handle), Ok(raw.offset..raw.offset + 4096));
        let slot = (raw.handle.to_bits() >> 32) as u32;
        assert_eq!(space.raw_at(slot), Some(*raw));
    }
    let numbers: BTreeSet<u128> =
        raws.iter().chain(&later).map(|raw| raw.handle.to_bits()).collect();
    assert_eq!(numbers.len(), 96);
    for raw in raws.iter().chain(&later) {
        assert_eq!(space.free_raw(raw.handle), Ok(4096));
        assert!(matches!(space.free_raw(raw.handle), Err(RawError::Stale { .. })));
        assert!(space.resolve_raw(raw.handle).is_err());
    }
    drop(held);
    assert_eq!((space.metrics().live, space.metrics().largest_free), (0, 1 << 20));
    space.check().unwrap();
}

/// A handle with any bits is an error, before and after a cut.
#[test]
fn forged_handles_of_a_cut_space_are_errors() {
    let space = sharded(1 << 20, 4);
    let raw = space.allocate_raw(100).unwrap();
    for bit in 0..128 {
        let forged = RawHandle::from_bits(raw.handle.to_bits() ^ 1 << bit);
        assert!(space.free_raw(forged).is_err(), "bit {bit}");
    }
    assert_eq!(space.free_raw(raw.handle), Ok(100));
}

/// A range can be longer than a shard, and a request never fails because of a cut.
#[test]
fn a_request_takes_free_bytes_of_several_shards() {
    let space = sharded(1 << 20, 8);
    let whole = space.allocate(1 << 20).unwrap();
    assert_eq!(whole.range(), 0..1 << 20);
    assert!(space.allocate(1).is_err());
    drop(whole);
    let middle = space.allocate_raw_at(300_000..700_000).unwrap();
    space.check().unwrap();
    let full = |requested| AllocError::OutOfSpace {
        requested,
        free: (1 << 20) - 400_000,
        largest_free: (1 << 20) - 700_000,
    };
    assert_eq!(space.allocate(400_000).unwrap_err(), full(400_000));
    let high = space.allocate((1 << 20) - 700_000).unwrap();
    let low = space.allocate(300_000).unwrap();
    assert_eq!((low.offset(), high.offset()), (0, 700_000));
    space.free_raw(middle.handle).unwrap();
    let mut low = low;
    low.extend(700_000).unwrap();
    assert_eq!(space.metrics().free, 0);
    drop((low, high));
    let aligned = space.allocate_aligned(1 << 19, 1 << 19).unwrap();
    assert_eq!(aligned.offset() % (1 << 19), 0);
    space.check().unwrap();
}

/// The free bytes at a start become longer by a free in one shard, and by one in the other.
#[test]
fn a_free_beside_a_start_is_noticed() {
    let space = sharded(1000, 2);
    let mut held: Vec<Allocation> = (0..100).map(|_| space.allocate(10).unwrap()).collect();
    held.sort_by_key(Allocation::offset);
    let full = AllocError::OutOfSpace { requested: 20, free: 0, largest_free: 0 };
    assert_eq!(space.allocate(20).unwrap_err(), full);
    let mut around = held.split_off(48);
    let rest = around.split_off(4);
    // 480..520 are freed from the outside in.
    let [a, b, c, d] = <[Allocation; 4]>::try_from(around).unwrap();
    drop((a, d));
    let apart = AllocError::OutOfSpace { requested: 20, free: 20, largest_free: 10 };
    assert_eq!(space.allocate(20).unwrap_err(), apart);
    drop(b);
    let two = space.allocate(20).unwrap();
    assert_eq!(two.range(), 480..500);
    drop(two);
    drop(c);
    let four = space.allocate(40).unwrap();
    assert_eq!(four.range(), 480..520);
    drop((four, held, rest));
    assert_eq!(space.metrics().largest_free, 1000);
}

#[test]
fn reports_show_free_bytes_of_several_shards_as_one_range() {
    let space = sharded(1 << 20, 4);
    let first = space.allocate_raw_at(0..100).unwrap();
    let metrics = space.metrics();
    assert_eq!((metrics.free_ranges, metrics.largest_free), (1, (1 << 20) - 100));
    let map: Vec<(u64, u64, bool)> = space
        .map()
        .iter()
        .map(|MapRange { offset, size, used, .. }| (*offset, *size, *used))
        .collect();
    assert_eq!(map, [(0, 100, true), (100, (1 << 20) - 100, false)]);
    assert_eq!(
        space.bins().iter().map(|bin| (bin.ranges, bin.bytes)).collect::<Vec<_>>(),
        [(1, (1 << 20) - 100)]
    );
    assert!(space.largest_free_hint() >= (1 << 20) - 100);
    space.free_raw(first.handle).unwrap();
}

#[test]
fn the_end_of_a_cut_space_moves() {
    let space = sharded(4096, 4);
    let low = space.allocate_raw_at(1500..1600).unwrap();
    assert_eq!(
        space.shrink_to(1599),
        Err(SpaceError::InUse { requested: 1599, end_of_last: 1600 })
    );
    space.shrink_to(1600).unwrap();
    space.check().unwrap();
    assert!(space.allocate(1501).is_err());
    space.grow_to(10_000).unwrap();
    space.check().unwrap();
    let high = space.allocate(8400).unwrap();
    assert_eq!(high.range(), 1600..10_000);
    assert_eq!(
        space.grow_to(9000),
        Err(SpaceError::WrongDirection { capacity: 10_000, requested: 9000 })
    );
    drop(high);
    space.free_raw(low.handle).unwrap();
    space.shrink_to(1).unwrap();
    assert_eq!(space.allocate(1).unwrap().offset(), 0);
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
fn numbers_of_shards_that_a_space_cannot_have_are_errors() {
    let build = |capacity, shards| OffsetAllocator::builder(capacity).shards(shards).build();
    let error = |requested, max| SpaceError::Shards { requested, max };
    assert_eq!(build(1 << 20, 0).unwrap_err(), error(0, 63));
    assert_eq!(build(1 << 20, 64).unwrap_err(), error(64, 63));
    assert_eq!(build(3, 4).unwrap_err(), error(4, 3));
    assert!(matches!(build(0, 2), Err(SpaceError::Capacity { requested: 0, .. })));
    let cut = OffsetAllocator::builder(100).boundary(60).shards(3).build();
    assert_eq!(cut.unwrap_err(), error(3, 2));
    let limited = OffsetAllocator::builder(1 << 20).max_ranges(63).shards(4).build();
    assert_eq!(limited.unwrap_err(), SpaceError::MaxRanges { requested: 63, min: 64 });
}

#[test]
fn a_batch_takes_as_many_shards_as_it_needs_or_none() {
    let space = sharded(4 << 10, 4);
    let home = space.allocate_batch(100, 10).unwrap();
    assert_eq!(shards_of(&home, 1 << 10).len(), 1);
    let failed = space.allocate_batch(100, 31).unwrap_err();
    assert!(matches!(failed, AllocError::OutOfSpace { requested: 3100, free: 3096, .. }));
    space.check().unwrap();
    let rest = space.allocate_batch(100, 30).unwrap();
    assert!(space.allocate_batch(100, 1).is_err());
    space.check().unwrap();
    let strangers = sharded(4 << 10, 2).allocate_batch(7, 3).unwrap();
    space.free_batch(home.into_iter().chain(strangers).chain(rest));
    assert_eq!((space.metrics().live, space.metrics().largest_free), (0, 4 << 10));
    space.check().unwrap();
}

/// Allocations of a cut space outlive it, and the last one drops its metadata.
#[test]
fn allocations_outlive_a_cut_space() {
    let space = sharded(1 << 20, 4);
    let mut held: Vec<Allocation> = (0..8).map(|_| space.allocate(1 << 16).unwrap()).collect();
    let raw = space.allocate(1 << 16).unwrap().into_raw();
    drop(space);
    held[0].shrink(100).unwrap();
    let first = held.remove(0);
    let part = first.offset() + 10..first.offset() + 20;
    let (left, right) = first.free_range(part).unwrap();
    drop((left, right, held));
    let other = sharded(1 << 20, 4);
    assert!(matches!(other.free_raw(raw), Err(RawError::Foreign { .. })));
    assert_eq!(other.allocate(1 << 20).unwrap().offset(), 0);
}

/// Extents of a space with caches, owned and raw, of before and after the cut.
#[test]
fn a_space_with_caches_is_cut() {
    let space = ExtentCache::new(1 << 30).unwrap();
    let raws = || (0..100).map(|at| space.allocate_raw(10_000 + at).unwrap()).collect::<Vec<_>>();
    let before = raws();
    space.cut(4);
    let after = raws();
    let mut all: Vec<_> = before.into_iter().chain(after).collect();
    all.sort_by_key(|raw| raw.offset);
    assert_eq!(space.raw_allocations(), all);
    for raw in &all {
        assert_eq!(space.resolve_raw(raw.handle), Ok(raw.offset..raw.offset + raw.size));
        space.shrink_raw(raw.handle, raw.size / 2).unwrap();
        assert_eq!(space.free_raw(raw.handle), Ok(raw.size / 2));
    }
    space.check().unwrap();
    assert_eq!(space.allocate(1 << 30).map(|whole| whole.len()), Ok(1 << 30));
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
