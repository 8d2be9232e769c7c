//! Threads that meet at the lock all the time, so that they publish their calls for its holder, and
//! threads that outlive a space.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator};

use kvmem_testkit::random::Random;

use super::space;
use crate::byte_owners::ByteOwners;
use crate::child::{forked, while_threads};

const CAPACITY: u64 = 1 << 20;
const THREADS: u64 = 4;
const STEPS: u64 = if cfg!(miri) { 100 } else { 20_000 };
/// Bytes that a thread keeps, so that all together nearly fill the space.
const SHARE: u64 = CAPACITY / THREADS - 4096;

/// The allocations of a thread, whose bytes are marked.
struct Worker<'a> {
    space: &'a OffsetAllocator,
    owners: &'a ByteOwners,
    live: Vec<Allocation>,
    used: u64,
    random: Random,
}

impl<'a> Worker<'a> {
    fn new(space: &'a OffsetAllocator, owners: &'a ByteOwners, seed: u64) -> Self {
        Worker { space, owners, live: Vec::new(), used: 0, random: Random::new(seed) }
    }

    fn step(&mut self) {
        let size = 1 + self.random.below(3000);
        if self.used + size <= SHARE {
            match self.space.allocate(size) {
                Ok(allocation) => {
                    assert_eq!(allocation.len(), size);
                    self.owners.take(allocation.range());
                    self.used += size;
                    return self.live.push(allocation);
                }
                Err(AllocError::OutOfSpace { requested, free, largest_free }) => {
                    assert!(requested == size && largest_free <= free, "{free} {largest_free}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        if !self.live.is_empty() {
            let victim = self.random.below(self.live.len() as u64) as usize;
            let allocation = self.live.swap_remove(victim);
            self.used -= allocation.len();
            self.owners.leave(allocation.range());
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.live.iter().for_each(|allocation| self.owners.leave(allocation.range()));
    }
}

/// Every thread has room for one block. A request fails only if the free before it is lost, or is
/// not found where it was published.
#[test]
fn a_request_finds_what_was_freed_before() {
    const BLOCK: u64 = CAPACITY / THREADS;
    let space = space(CAPACITY, None);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for step in 0..STEPS {
                    let block = space.allocate(BLOCK).unwrap_or_else(|e| panic!("{step}: {e}"));
                    assert_eq!(block.offset() % BLOCK, 0);
                    drop(block);
                    assert!(space.largest_free_hint() >= BLOCK, "after {step} frees");
                }
            });
        }
    });
    assert_eq!(space.metrics().largest_free, CAPACITY);
}

/// A thread that panics frees its allocations while it unwinds; a fork meets published calls.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn panics_and_forks_beside_published_calls() {
    let (space, owners) = (space(CAPACITY, None), ByteOwners::new(CAPACITY));
    let work = |thread, call| {
        let mut worker = Worker::new(&space, &owners, thread + 3 * call);
        (0..2000).for_each(|_| worker.step());
    };
    while_threads(3, work, || {
        for round in 0..40 {
            let panics = thread::scope(|scope| {
                let panics = scope.spawn(|| {
                    let mut worker = Worker::new(&space, &owners, round);
                    (0..200).for_each(|_| worker.step());
                    std::panic::resume_unwind(Box::new("as intended"));
                });
                panics.join()
            });
            assert!(panics.is_err());
            let status = forked(|| {
                if space.check().is_err() {
                    return 1;
                }
                // More often than it takes to close the slots, on one thread.
                let served = (1..300).all(|size| space.allocate(size).is_ok());
                i32::from(!served) * 2 + i32::from(space.check().is_err()) * 4
            });
            assert_eq!(status, 0, "round {round}");
        }
    });
    assert_eq!(space.metrics().allocated, 0);
    space.check().unwrap();
}

/// The allocator is dropped while its last allocations are freed.
#[test]
fn an_allocator_is_dropped_beside_published_frees() {
    for round in 0..STEPS / 100 {
        let space = space(CAPACITY, None);
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                let (space, barrier) = (space.clone(), &barrier);
                scope.spawn(move || {
                    let mut last = None;
                    barrier.wait();
                    for size in 1..200 {
                        last = space.allocate(size + round).ok();
                    }
                    drop(space);
                    drop(last);
                });
            }
            drop(space);
        });
    }
}

/// A thread that learns of a free can rely on the room, without a lock of its own.
#[test]
fn a_free_that_happened_before_is_visible() {
    const SIZE: u64 = 4096;
    const ROUNDS: u64 = 2_000;
    let space = space(SIZE, None);
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for me in 0..2 {
            let (space, next) = (&space, &next);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Acquire pairs with the Release below: the other thread's free happened
                    // before.
                    while next.load(Ordering::Acquire) != 2 * round + me {
                        thread::yield_now();
                    }
                    assert!(space.largest_free_hint() >= SIZE);
                    let granted = space.allocate(SIZE).expect("the other has freed it");
                    assert!(space.allocate(1).is_err());
                    drop(granted);
                    next.store(2 * round + me + 1, Ordering::Release);
                }
            });
        }
    });
}

/// Threads still hold allocations when the last allocator is dropped.
#[test]
fn threads_outlive_the_allocator() {
    for round in 0..50 {
        let space = space(1 << 20, None);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut live = space.allocate_batch(1000 + thread, 20).unwrap();
                thread::spawn(move || {
                    let mut random = Random::new(round * THREADS + thread);
                    while !live.is_empty() {
                        let mut gone = live.swap_remove(random.below(live.len() as u64) as usize);
                        assert_eq!(gone.len(), 1000 + thread);
                        gone.shrink(1).unwrap();
                    }
                })
            })
            .collect();
        drop(space);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Spaces are created, used and dropped all at the same time; their cores pass from one to the
/// next.
#[test]
fn cores_change_hands() {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut kept: Vec<Allocation> = Vec::new();
                for round in 0..300 {
                    let capacity = 1000 * (thread + 1) + round;
                    let space = OffsetAllocator::new(capacity).unwrap();
                    let raw = space.allocate_raw(10).unwrap();
                    kept.push(space.allocate(capacity - 10).unwrap());
                    assert_eq!((space.metrics().live, space.metrics().free), (2, 0));
                    if round % 2 == 0 {
                        assert_eq!(space.free_raw(raw.handle), Ok(10));
                    }
                    drop(space);
                    assert_eq!(kept.last().unwrap().len(), capacity - 10);
                    if round % 7 == 0 {
                        kept.clear();
                    }
                }
            });
        }
    });
}
