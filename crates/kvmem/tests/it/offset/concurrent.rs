//! Many threads on one space.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, Placement, RawHandle};

use kvmem_testkit::random::Random;

use super::space;
use crate::byte_owners::ByteOwners;

const THREADS: u64 = 8;
const STEPS: u64 = 4000;

enum Parcel {
    Own(Allocation),
    Raw(RawHandle),
}

struct Worker<'a> {
    space: OffsetAllocator,
    byte_owners: &'a ByteOwners,
    random: Random,
    inbox: Receiver<Parcel>,
    outboxes: Vec<Sender<Parcel>>,
}

impl Worker<'_> {
    /// Frees a parcel or sends it away.
    fn dispose(&mut self, parcel: Parcel) {
        if self.random.below(3) == 0 {
            let to = self.random.below(THREADS) as usize;
            // The parcels of a worker that has ended go to the others.
            if let Err(mpsc::SendError(parcel)) = self.outboxes[to].send(parcel) {
                self.free(parcel);
            }
        } else {
            self.free(parcel);
        }
    }

    fn free(&self, parcel: Parcel) {
        match parcel {
            Parcel::Own(allocation) => {
                self.byte_owners.leave(allocation.range());
                drop(allocation);
            }
            Parcel::Raw(handle) => {
                let range = self.space.resolve_raw(handle).unwrap();
                self.byte_owners.leave(range.clone());
                assert_eq!(self.space.free_raw(handle), Ok(range.end - range.start));
                assert!(self.space.free_raw(handle).is_err(), "twice");
            }
        }
    }

    fn work(mut self) {
        let mut live: Vec<Parcel> = Vec::new();
        for _ in 0..STEPS {
            let most = if self.random.once_in(5) { 2000 } else { 90 };
            let size = 1 + self.random.below(most);
            match self.random.below(12) {
                0..4 => match self.space.allocate(size) {
                    Ok(granted) => {
                        assert_eq!(granted.len(), size);
                        self.byte_owners.take(granted.range());
                        live.push(Parcel::Own(granted));
                    }
                    Err(AllocError::OutOfSpace { requested, .. }) => assert_eq!(requested, size),
                    Err(other) => panic!("{other}"),
                },
                4 => {
                    if let Ok(granted) = self.space.allocate_aligned(size, 64) {
                        assert!(granted.offset().is_multiple_of(64));
                        self.byte_owners.take(granted.range());
                        live.push(Parcel::Own(granted));
                    }
                }
                5 => {
                    for granted in self.space.allocate_batch(size.min(64), 5).unwrap_or_default() {
                        self.byte_owners.take(granted.range());
                        live.push(Parcel::Own(granted));
                    }
                }
                6 => {
                    let parts = self.space.allocate_scattered(size * 4, 4).unwrap_or_default();
                    for part in parts {
                        self.byte_owners.take(part.range());
                        live.push(Parcel::Own(part));
                    }
                }
                7 => {
                    if let Ok(granted) = self.space.allocate_raw(size) {
                        self.byte_owners.take(granted.offset..granted.offset + size);
                        live.push(Parcel::Raw(granted.handle));
                    }
                }
                8 => {
                    let run: Vec<Allocation> = live
                        .extract_if(.., |parcel| matches!(parcel, Parcel::Own(_)))
                        .take(6)
                        .map(own)
                        .collect();
                    run.iter().for_each(|allocation| self.byte_owners.leave(allocation.range()));
                    self.space.free_batch(run);
                }
                9 => {
                    if let Some(Parcel::Own(allocation)) = live.last_mut() {
                        let (range, size) = (allocation.range(), allocation.len());
                        let shorter = 1 + self.random.below(size);
                        self.byte_owners.leave(range.start + shorter..range.end);
                        allocation.shrink(shorter).unwrap();
                        if allocation.extend(shorter + 10).is_ok() {
                            self.byte_owners.take(range.start + shorter..allocation.range().end);
                        }
                    }
                }
                _ => {
                    if !live.is_empty() {
                        let parcel =
                            live.swap_remove(self.random.below(live.len() as u64) as usize);
                        self.dispose(parcel);
                    }
                }
            }
            while let Ok(parcel) = self.inbox.try_recv() {
                self.free(parcel);
            }
        }
        self.outboxes.clear();
        live.drain(..).for_each(|parcel| self.free(parcel));
        // Until all other threads have dropped their ends.
        while let Ok(parcel) = self.inbox.recv() {
            self.free(parcel);
        }
    }
}

fn own(parcel: Parcel) -> Allocation {
    match parcel {
        Parcel::Own(allocation) => allocation,
        Parcel::Raw(_) => unreachable!("only RAII allocations were chosen"),
    }
}

fn stress(space: &OffsetAllocator, seed: u64) {
    let capacity = space.capacity();
    let byte_owners = ByteOwners::new(capacity);
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0u64;
            while !done.load(Ordering::Relaxed) {
                let metrics = space.metrics();
                assert_eq!(
                    (metrics.capacity, metrics.allocated + metrics.free),
                    (capacity, capacity)
                );
                assert!(
                    metrics.largest_free <= metrics.free && space.largest_free_hint() <= capacity
                );
                if looks.is_multiple_of(64) {
                    space.check().unwrap();
                    let map = space.map();
                    assert_eq!(map.iter().map(|range| range.size).sum::<u64>(), capacity);
                }
                looks += 1;
            }
            looks
        });
        let workers: Vec<_> = inboxes
            .into_iter()
            .zip(0..)
            .map(|(inbox, thread)| {
                let (space, outboxes, byte_owners) =
                    (space.clone(), outboxes.clone(), &byte_owners);
                let random = Random::new(seed * 100 + thread);
                scope.spawn(move || Worker { space, byte_owners, random, inbox, outboxes }.work())
            })
            .collect();
        drop(outboxes);
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        results
            .into_iter()
            .for_each(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        assert!(reader.join().unwrap() > 0);
    });
    let left = space.metrics();
    assert_eq!((left.live, left.allocated, left.free), (0, 0, capacity));
    assert_eq!(left.largest_free, capacity.min(space.boundary().unwrap_or(u64::MAX)));
    assert!(space.largest_free_hint() >= left.largest_free);
    space.check().unwrap();
}

#[test]
fn eight_threads_with_renewal_placement() {
    stress(&space(1 << 16, None), 1);
}

#[test]
fn eight_threads_with_best_fit_and_boundary() {
    let space =
        OffsetAllocator::builder(1 << 16).boundary(5000).placement(Placement::BestFit).build();
    stress(&space.unwrap(), 2);
}

/// A thread that learns of a free can rely on the room, without a lock of its own.
#[test]
fn a_free_that_happened_before_is_visible() {
    const SIZE: u64 = 4096;
    const TURNS: u64 = 20_000;
    let space = space(SIZE, None);
    let turn = AtomicU64::new(0);
    thread::scope(|scope| {
        for me in 0..2 {
            let (space, turn) = (&space, &turn);
            scope.spawn(move || {
                for round in 0..TURNS {
                    // Acquire pairs with the Release below: the other thread's free happened
                    // before.
                    while turn.load(Ordering::Acquire) != 2 * round + me {
                        thread::yield_now();
                    }
                    assert!(space.largest_free_hint() >= SIZE);
                    let granted = space.allocate(SIZE).expect("the other has freed it");
                    assert!(space.allocate(1).is_err());
                    drop(granted);
                    turn.store(2 * round + me + 1, Ordering::Release);
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
