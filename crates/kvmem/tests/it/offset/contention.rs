//! Threads that meet at the lock all the time, so that they publish their calls for its holder.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator};

use kvmem_testkit::random::Random;

use super::space;
use crate::byte_owners::ByteOwners;
use crate::child::forked;

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

#[test]
fn no_byte_has_two_owners_and_none_is_lost() {
    let (space, owners) = (space(CAPACITY, None), ByteOwners::new(CAPACITY));
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (space, owners) = (&space, &owners);
            scope.spawn(move || {
                let mut worker = Worker::new(space, owners, seed);
                (0..STEPS).for_each(|_| worker.step());
                // Of this thread, at least its own allocations are live.
                assert!(space.metrics().live >= worker.live.len() as u64);
            });
        }
    });
    let metrics = space.metrics();
    assert_eq!((metrics.allocated, metrics.live, metrics.largest_free), (0, 0, CAPACITY));
    space.check().unwrap();
    assert!(space.allocate(CAPACITY).is_ok());
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

/// Ends the other threads' work, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that panics frees its allocations while it unwinds; a fork meets published calls.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn panics_and_forks_beside_published_calls() {
    let (space, owners) = (space(CAPACITY, None), ByteOwners::new(CAPACITY));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (space, owners, stop) = (&space, &owners, &stop);
            scope.spawn(move || {
                let mut worker = Worker::new(space, owners, seed);
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                }
            });
        }
        let _stop = Stop(&stop);
        for round in 0..40 {
            let (space, owners) = (&space, &owners);
            let panics = scope.spawn(move || {
                let mut worker = Worker::new(space, owners, round);
                (0..200).for_each(|_| worker.step());
                std::panic::resume_unwind(Box::new("as intended"));
            });
            assert!(panics.join().is_err());
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
