//! Threads that share a space and free for each other, on every kind of space: no byte has two
//! owners, and none is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use kvmem::offset::{AllocError, OffsetAllocator, Placement, RawHandle};
use kvmem::slab::ExtentCache;
use kvmem_testkit::driver::sharded::Sharded;
use kvmem_testkit::driver::tested_allocator::{OwnedRange, TestedAllocator};
use kvmem_testkit::op::{Cache, Config};
use kvmem_testkit::random::Random;

use crate::byte_owners::ByteOwners;

const THREADS: u64 = 8;
/// Each thread ends and another one takes its place this many times; more often in an optimized
/// build.
const LIVES: u64 = if cfg!(debug_assertions) { 4 } else { 32 };
const STEPS: u64 = 800;
const CAPACITY: u64 = 1 << 16;

enum Parcel<A: TestedAllocator> {
    Own(A::Owned),
    Raw(RawHandle),
}

struct Worker<'a, A: TestedAllocator> {
    space: A,
    owners: &'a ByteOwners,
    random: Random,
    inbox: &'a mut Receiver<Parcel<A>>,
    outboxes: &'a [Sender<Parcel<A>>],
    live: Vec<Parcel<A>>,
}

impl<A: TestedAllocator> Worker<'_, A> {
    fn free(&self, parcel: Parcel<A>) {
        match parcel {
            Parcel::Own(allocation) => {
                self.owners.leave(allocation.range());
                drop(allocation);
            }
            Parcel::Raw(handle) => {
                let range = self.space.resolve_raw(handle).unwrap();
                self.owners.leave(range.clone());
                assert_eq!(self.space.free_raw(handle), Ok(range.end - range.start));
                assert!(self.space.free_raw(handle).is_err(), "twice");
            }
        }
    }

    fn record(&mut self, allocations: impl IntoIterator<Item = A::Owned>) {
        for allocation in allocations {
            self.owners.take(allocation.range());
            self.live.push(Parcel::Own(allocation));
        }
    }

    fn size(&mut self) -> u64 {
        // Sizes that caches find hot, others, and long ones.
        match self.random.below(8) {
            0 => 1 + self.random.below(3000),
            few @ 1..4 => 1 + self.random.below(30 * few),
            hot => 16 << (hot % 4),
        }
    }

    fn step(&mut self) {
        let size = self.size();
        match self.random.below(24) {
            0..9 => match self.space.allocate(size) {
                Ok(granted) => {
                    assert_eq!(granted.len(), size);
                    self.record([granted]);
                }
                Err(AllocError::OutOfSpace { requested, .. }) => assert_eq!(requested, size),
                Err(other) => panic!("{other}"),
            },
            9 | 10 => {
                let aligned = self.space.allocate_aligned(size, 64).ok();
                assert!(aligned.as_ref().is_none_or(|granted| granted.offset() % 64 == 0));
                self.record(aligned);
            }
            11 => {
                let batch = self.space.allocate_batch(size.min(64), 5).unwrap_or_default();
                assert!([0, 5].contains(&batch.len()));
                self.record(batch);
            }
            12 => {
                let parts = self.space.allocate_scattered(size * 4, 4).unwrap_or_default();
                self.record(parts);
            }
            13 | 14 => {
                if let Ok(raw) = self.space.allocate_raw(size) {
                    self.owners.take(raw.offset..raw.offset + size);
                    self.live.push(Parcel::Raw(raw.handle));
                }
            }
            15 => {
                let own = |parcel| match parcel {
                    Parcel::Own(allocation) => allocation,
                    Parcel::Raw(_) => unreachable!("only owned allocations were chosen"),
                };
                let is_own = |parcel: &mut Parcel<A>| matches!(parcel, Parcel::Own(_));
                let run = self.live.extract_if(.., is_own).take(6).map(own).collect::<Vec<_>>();
                run.iter().for_each(|allocation| self.owners.leave(allocation.range()));
                self.space.free_batch(run);
            }
            16 => {
                if let Some(Parcel::Own(allocation)) = self.live.last_mut() {
                    let range = allocation.range();
                    let shorter = 1 + self.random.below(allocation.len());
                    self.owners.leave(range.start + shorter..range.end);
                    allocation.shrink(shorter).unwrap();
                    if allocation.extend(shorter + 10).is_ok() {
                        self.owners.take(range.start + shorter..allocation.range().end);
                    }
                }
            }
            17 if self.random.once_in(40) => self.space.trim(),
            _ if self.live.is_empty() => {}
            _ => {
                let at = self.random.below(self.live.len() as u64) as usize;
                let parcel = self.live.swap_remove(at);
                if self.random.once_in(3) {
                    let to = self.random.below(THREADS) as usize;
                    self.outboxes[to].send(parcel).expect("all inboxes are there");
                } else {
                    self.free(parcel);
                }
            }
        }
        while let Ok(parcel) = self.inbox.try_recv() {
            self.free(parcel);
        }
    }

    /// Runs one thread from start to end; what it holds at the end goes to the other threads.
    fn work(mut self) {
        (0..STEPS).for_each(|_| self.step());
        for (parcel, to) in self.live.drain(..).zip(0u64..) {
            self.outboxes[(to % THREADS) as usize].send(parcel).expect("all inboxes are there");
        }
    }
}

/// Runs the threads while another one reads all reports. In the end the space is as it was made.
fn share<A: TestedAllocator + Send + Sync>(config: Config, seed: u64) {
    let space = &A::open(&config).unwrap();
    let (owners, done) = (&ByteOwners::new(CAPACITY), &AtomicBool::new(false));
    let empty = space.metrics().largest_free;
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    thread::scope(|scope| {
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let metrics = space.metrics();
                let sum = metrics.allocated + metrics.free;
                assert_eq!((metrics.capacity, sum), (CAPACITY, CAPACITY));
                assert!(metrics.largest_free <= metrics.free, "{metrics:?}");
                assert!(space.largest_free_hint() <= CAPACITY);
                assert_eq!(space.map().iter().map(|(_, size, _)| size).sum::<u64>(), CAPACITY);
                assert!(space.bins().iter().map(|bin| bin.bytes).sum::<u64>() <= CAPACITY);
                space.check().unwrap();
                thread::yield_now();
            }
        });
        let live = |(mut inbox, thread): (Receiver<Parcel<A>>, u64)| {
            let outboxes = outboxes.clone();
            scope.spawn(move || {
                for life in 0..LIVES {
                    let (inbox, outboxes, space) = (&mut inbox, &outboxes[..], space.clone());
                    let random = Random::new(seed * 1000 + thread + life * THREADS);
                    let worker = Worker { space, owners, random, inbox, outboxes, live: vec![] };
                    thread::scope(|one| one.spawn(|| worker.work()).join().unwrap());
                }
                inbox
            })
        };
        let workers: Vec<_> = inboxes.into_iter().zip(0..).map(live).collect();
        // All inboxes live until no thread sends any more; their content is freed here.
        let inboxes: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        for parcel in inboxes.iter().flat_map(Receiver::try_iter) {
            match parcel {
                Parcel::Own(allocation) => drop(allocation),
                Parcel::Raw(handle) => assert!(space.free_raw(handle).is_ok()),
            }
        }
    });
    assert_eq!(space.cached().1 > 0, A::CACHES, "caches were reclaimed");
    space.trim();
    let left = space.metrics();
    assert_eq!((left.live, left.allocated, left.free), (0, 0, CAPACITY));
    assert_eq!((left.largest_free, space.cached().0), (empty, 0));
    assert!(space.largest_free_hint() >= left.largest_free);
    space.check().unwrap();
}

fn config(boundary: Option<u64>, placement: Placement, cache: Option<Cache>) -> Config {
    Config { capacity: CAPACITY, boundary, placement, max_ranges: None, cache }
}

#[test]
fn a_space() {
    share::<OffsetAllocator>(config(None, Placement::Renewal, None), 1);
    share::<OffsetAllocator>(config(Some(5000), Placement::BestFit, None), 2);
}

#[test]
fn a_space_with_shards() {
    share::<Sharded<OffsetAllocator>>(config(None, Placement::Renewal, None), 3);
    share::<Sharded<OffsetAllocator>>(config(Some(5000), Placement::Renewal, None), 4);
}

#[test]
fn a_space_with_caches() {
    for auto_hot_sizes in [true, false] {
        let hot = if auto_hot_sizes { [0; 4] } else { [16, 32, 64, 128] };
        let cache = Cache { hot, auto_hot_sizes, max_cached_bytes: Some(CAPACITY / 4) };
        share::<ExtentCache>(config(None, Placement::Renewal, Some(cache)), 5);
    }
}
