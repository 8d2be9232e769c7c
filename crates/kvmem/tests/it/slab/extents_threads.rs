//! Cached spaces under many threads: no request fails because of cached ranges.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvmem::offset::OffsetAllocator;
use kvmem::slab::{Extent, ExtentCache};
use kvmem_testkit::random::Random;

use super::named;

const THREADS: u64 = 8;
/// More work in an optimized build.
const FACTOR: u64 = if cfg!(debug_assertions) { 1 } else { 8 };

/// As many ranges as threads, and each thread holds at most one: no request fails, wherever the
/// others' ranges are.
#[test]
fn no_request_fails_while_there_is_a_range_per_thread() {
    for (threads, hot, aligned) in
        [(2, true, false), (3, true, false), (8, true, false), (4, true, true), (4, false, false)]
    {
        let space = named(threads * 100, if hot { &[100] } else { &[] });
        let detecting = ExtentCache::builder(OffsetAllocator::builder(threads * 100))
            .max_cached_bytes(threads * 100)
            .build();
        for space in [space, detecting.unwrap()] {
            let start = Barrier::new(threads as usize);
            thread::scope(|scope| {
                for seed in 0..threads {
                    let (space, start) = (&space, &start);
                    scope.spawn(move || {
                        let mut random = Random::new(seed);
                        start.wait();
                        for round in 0..3000 * FACTOR {
                            let extent = match aligned {
                                true => space.allocate_aligned(100, 4),
                                false => space.allocate(100),
                            };
                            let extent = extent.unwrap_or_else(|error| {
                                panic!(
                                    "{threads} threads, round {round}: {error}; {:?}",
                                    space.stats()
                                )
                            });
                            if random.once_in(50) {
                                thread::yield_now();
                            }
                            drop(extent);
                            // Some threads end and restart with empty magazines.
                            if random.once_in(1000) {
                                thread::scope(|inner| {
                                    inner
                                        .spawn(|| drop(space.allocate(100).expect("mine is free")));
                                });
                            }
                        }
                    });
                }
            });
            space.trim();
            assert_eq!((space.metrics().largest_free, space.metrics().live), (threads * 100, 0));
        }
    }
}

/// One of two ranges is free at every moment: the threads go in a circle, and each one
/// takes a range before the next one goes.
#[test]
fn no_request_fails_while_one_range_goes_round() {
    const RUNNERS: u64 = 3;
    let space = named(200, &[100]);
    let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for me in 0..RUNNERS {
            let (space, next) = (&space, &next);
            scope.spawn(move || {
                for lap in 0..2000 * FACTOR {
                    while next.load(Ordering::Acquire) != lap * RUNNERS + me {
                        thread::yield_now();
                    }
                    // The thread before has no range any more, and the other threads have at most
                    // one.
                    drop(
                        space
                            .allocate(100)
                            .unwrap_or_else(|error| panic!("lap {lap} of {me}: {error}")),
                    );
                    next.fetch_add(1, Ordering::Release);
                }
            });
        }
        let (space, done, next) = (&space, &done, &next);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                drop(space.allocate(100).expect("the runners have one at most"));
                if next.load(Ordering::Relaxed) == 2000 * FACTOR * RUNNERS {
                    done.store(true, Ordering::Relaxed);
                }
            }
        });
    });
    space.check().unwrap();
}

/// Any number of threads, starting and ending, caches no more than the bound.
#[test]
fn cached_bytes_stay_within_the_bound() {
    let builder = ExtentCache::builder(OffsetAllocator::builder(1 << 20)).auto_hot_sizes(false);
    let space = builder.hot_sizes([64, 1000]).max_cached_bytes(20_000).build().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (space, done) = (&space, &done);
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..50 * FACTOR {
                        let n = random.below(200);
                        let size = [64, 1000][random.below(2) as usize];
                        let held: Vec<_> =
                            (0..n).filter_map(|_| space.allocate(size).ok()).collect();
                        drop(held);
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let stats = space.stats();
                assert!(stats.charged_bytes <= 20_000, "{stats:?}");
                let cached: u64 = space
                    .map()
                    .iter()
                    .filter(|range| range.state == kvmem::slab::ExtentState::Cached)
                    .map(|range| range.size)
                    .sum();
                assert!(cached <= 20_000, "{cached} bytes are cached");
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert!(space.stats().cached_bytes <= space.stats().charged_bytes);
    space.trim();
    assert_eq!(space.stats().charged_bytes, 0);
}

/// Sizes are forgotten and detected again while other threads allocate and free ranges of them.
#[test]
fn hot_sizes_change_during_use() {
    let space = ExtentCache::builder(OffsetAllocator::builder(1 << 24))
        .max_cached_bytes(1 << 24)
        .build()
        .unwrap();
    thread::scope(|scope| {
        for seed in 0..4u64 {
            let space = &space;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut held: Vec<Extent> = Vec::new();
                for step in 0..60_000 * (1 + FACTOR / 8) {
                    // The requested sizes change over time.
                    let size = 1 + random.below(40) * 16 + step / 3000 % 7;
                    let extent = space.allocate(size).expect("the space has room");
                    assert_eq!(extent.len(), size);
                    held.push(extent);
                    if held.len() > 50 {
                        drop(held.swap_remove(random.below(50) as usize));
                    }
                }
            });
        }
    });
    space.check().unwrap();
    space.trim();
    assert_eq!((space.metrics().largest_free, space.stats().charged_bytes), (1 << 24, 0));
}
