//! Cached spaces under many threads: nothing is lost or given twice, and nothing is refused for
//! want of what is cached.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use kvmem::offset::{AllocError, OffsetAllocator, RawHandle};
use kvmem::slab::{Extent, ExtentCache};
use kvmem_testkit::random::Random;

use crate::ground::Ground;

const THREADS: u64 = 8;
/// More in an optimized build.
const FACTOR: u64 = if cfg!(debug_assertions) { 1 } else { 8 };
const CAPACITY: u64 = 1 << 16;

fn named(capacity: u64, hot: &[u64], max_cached_bytes: u64) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).auto_hot_sizes(false);
    builder
        .hot_sizes(hot.iter().copied())
        .max_cached_bytes(max_cached_bytes)
        .build()
        .expect("good settings")
}

enum Parcel {
    Own(Extent),
    Raw(RawHandle),
}

struct Worker<'a> {
    space: &'a ExtentCache,
    bytes: &'a Ground,
    random: Random,
    inbox: &'a mut Receiver<Parcel>,
    outboxes: &'a [Sender<Parcel>],
}

impl Worker<'_> {
    fn free(&self, parcel: Parcel) {
        match parcel {
            Parcel::Own(extent) => {
                self.bytes.leave(extent.range());
                drop(extent);
            }
            Parcel::Raw(handle) => {
                let range = self.space.resolve_raw(handle).unwrap();
                self.bytes.leave(range.clone());
                assert_eq!(self.space.free_raw(handle), Ok(range.end - range.start));
                assert!(self.space.free_raw(handle).is_err(), "twice");
            }
        }
    }

    fn granted(&self, extent: Extent, live: &mut Vec<Parcel>) {
        self.bytes.take(extent.range());
        live.push(Parcel::Own(extent));
    }

    /// A life of a thread: what it still holds then goes to others.
    fn work(&mut self, steps: u64) {
        let mut live: Vec<Parcel> = Vec::new();
        for _ in 0..steps {
            // Five hot sizes, and any.
            let size = match self.random.below(8) {
                0 => 1 + self.random.below(3000),
                size => 16 << (size % 5),
            };
            match self.random.below(24) {
                0..10 => match self.space.allocate(size) {
                    Ok(extent) => {
                        assert_eq!(extent.size(), size);
                        self.granted(extent, &mut live);
                    }
                    Err(AllocError::OutOfSpace { requested, .. }) => assert_eq!(requested, size),
                    Err(other) => panic!("{other}"),
                },
                10 => {
                    if let Ok(extent) = self.space.allocate_aligned(size, 64) {
                        assert!(extent.offset().is_multiple_of(64));
                        self.granted(extent, &mut live);
                    }
                }
                11 => {
                    let batch = self.space.allocate_batch(size.min(64), 5).unwrap_or_default();
                    batch.into_iter().for_each(|extent| self.granted(extent, &mut live));
                }
                12 => {
                    let parts = self.space.allocate_scattered(size * 4, 4).unwrap_or_default();
                    parts.into_iter().for_each(|extent| self.granted(extent, &mut live));
                }
                13 | 14 => {
                    if let Ok(raw) = self.space.allocate_raw(size) {
                        self.bytes.take(raw.offset..raw.offset + size);
                        live.push(Parcel::Raw(raw.handle));
                    }
                }
                15 => {
                    if let Some(Parcel::Own(extent)) = live.last_mut() {
                        let (range, shorter) =
                            (extent.range(), 1 + self.random.below(extent.size()));
                        self.bytes.leave(range.start + shorter..range.end);
                        extent.shrink(shorter).unwrap();
                        if extent.extend(shorter + 16).is_ok() {
                            self.bytes.take(range.start + shorter..extent.range().end);
                        }
                    }
                }
                16 if self.random.once_in(40) => self.space.trim(),
                17 if self.random.once_in(200) => self.space.check().unwrap(),
                _ => {
                    if !live.is_empty() {
                        let parcel =
                            live.swap_remove(self.random.below(live.len() as u64) as usize);
                        match self.random.once_in(3) {
                            true => {
                                let to = self.random.below(THREADS) as usize;
                                self.outboxes[to].send(parcel).expect("all inboxes are there");
                            }
                            false => self.free(parcel),
                        }
                    }
                }
            }
            while let Ok(parcel) = self.inbox.try_recv() {
                self.free(parcel);
            }
        }
        for (parcel, to) in live.into_iter().zip(0u64..) {
            self.outboxes[(to % THREADS) as usize].send(parcel).expect("all inboxes are there");
        }
    }
}

/// Threads that die and come again, frees that cross, reaps in between, and somebody who looks all
/// the time.
#[test]
fn nothing_is_lost_or_given_twice() {
    for learns in [true, false] {
        let hot = if learns { &[][..] } else { &[16, 32, 64, 128, 256] };
        let builder =
            ExtentCache::builder(OffsetAllocator::builder(CAPACITY)).auto_hot_sizes(learns);
        let space =
            builder.hot_sizes(hot.iter().copied()).max_cached_bytes(CAPACITY / 4).build().unwrap();
        let (bytes, done) = (Ground::new(CAPACITY), AtomicBool::new(false));
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
        thread::scope(|scope| {
            let (space, bytes, done) = (&space, &bytes, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let stats = space.stats();
                    assert!(stats.charged_bytes <= stats.max_cached_bytes, "{stats:?}");
                    let metrics = space.metrics();
                    assert_eq!(metrics.free + metrics.allocated, CAPACITY);
                    assert_eq!(space.map().iter().map(|range| range.size).sum::<u64>(), CAPACITY);
                    assert!(space.bins().iter().map(|bin| bin.bytes).sum::<u64>() <= CAPACITY);
                    space.check().unwrap();
                    thread::yield_now();
                }
            });
            let workers: Vec<_> = inboxes
                .into_iter()
                .zip(0..)
                .map(|(mut inbox, seed)| {
                    let outboxes = outboxes.clone();
                    scope.spawn(move || {
                        for life in 0..4 * FACTOR {
                            let (inbox, outboxes) = (&mut inbox, &outboxes[..]);
                            let random = Random::new(seed + life * THREADS);
                            let mut worker = Worker { space, bytes, random, inbox, outboxes };
                            thread::scope(|lives| {
                                lives.spawn(move || worker.work(600)).join().unwrap()
                            });
                        }
                        inbox
                    })
                })
                .collect();
            // All inboxes stay until nobody sends any more; what is in them is freed here.
            for inbox in
                workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
            {
                for parcel in inbox.try_iter() {
                    match parcel {
                        Parcel::Own(extent) => drop(extent),
                        Parcel::Raw(handle) => assert!(space.free_raw(handle).is_ok()),
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(space.stats().reclaims > 0);
        space.trim();
        let (metrics, stats) = (space.metrics(), space.stats());
        assert_eq!((metrics.allocated, metrics.live, metrics.largest_free), (0, 0, CAPACITY));
        assert_eq!((stats.cached_ranges, stats.charged_bytes), (0, 0), "{stats:?}");
        space.check().unwrap();
    }
}

/// As many ranges as threads, each of which has one at most: none is ever refused, wherever the
/// others' lie.
#[test]
fn nobody_is_refused_while_there_is_one_for_each() {
    for (threads, hot, aligned) in
        [(2, true, false), (3, true, false), (8, true, false), (4, true, true), (4, false, false)]
    {
        let space = named(threads * 100, if hot { &[100] } else { &[] }, threads * 100);
        let learning = ExtentCache::builder(OffsetAllocator::builder(threads * 100))
            .max_cached_bytes(threads * 100)
            .build();
        for space in [space, learning.unwrap()] {
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
                            // Some end, and begin anew with empty hands.
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

/// One of two ranges is free at every moment: it is handed round in a circle, and everybody takes
/// the other one before he lets go.
#[test]
fn nobody_is_refused_while_one_goes_round() {
    const RUNNERS: u64 = 3;
    let space = named(200, &[100], 200);
    let (turn, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for me in 0..RUNNERS {
            let (space, turn) = (&space, &turn);
            scope.spawn(move || {
                for lap in 0..2000 * FACTOR {
                    while turn.load(Ordering::Acquire) != lap * RUNNERS + me {
                        thread::yield_now();
                    }
                    // The one before has none any more, and the one beside has one at most.
                    drop(
                        space
                            .allocate(100)
                            .unwrap_or_else(|error| panic!("lap {lap} of {me}: {error}")),
                    );
                    turn.fetch_add(1, Ordering::Release);
                }
            });
        }
        let (space, done, turn) = (&space, &done, &turn);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                drop(space.allocate(100).expect("the runners have one at most"));
                if turn.load(Ordering::Relaxed) == 2000 * FACTOR * RUNNERS {
                    done.store(true, Ordering::Relaxed);
                }
            }
        });
    });
    space.check().unwrap();
}

/// However many threads cache, and whatever becomes of them: not more than the bound.
#[test]
fn no_more_is_stranded_than_the_bound() {
    let space = named(1 << 20, &[64, 1000], 20_000);
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

/// Sizes are forgotten and learnt anew while others allocate and free ranges of them.
#[test]
fn sizes_change_under_way() {
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
                    // The sizes that are asked for move on.
                    let size = 1 + random.below(40) * 16 + step / 3000 % 7;
                    let extent = space.allocate(size).expect("there is plenty");
                    assert_eq!(extent.size(), size);
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
