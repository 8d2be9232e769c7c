//! The hint of an offset space: read without the lock, and never below the truth of what happened
//! before.
//!
//! "Happened before" has the meaning of the memory model: in the same thread, or passed on by a
//! join, or by a Release store that an Acquire load has read.

use std::ops::Range;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::space_core::SpaceCore;
use crate::offset::heap::{Heap, Placed};
use crate::offset::{AllocError, Placement};
use crate::sync::models::preemptions::check;

const ALL: u64 = 100;
/// Preemptions of an order: a call that waits for the lock, or has another thread do its work, has
/// many steps.
const PREEMPTIONS: usize = 3;

/// The core of a space, without registry and RAII.
struct Space(SpaceCore);

/// An allocated range.
#[derive(Debug)]
struct Granted {
    placed: Placed,
    size: u64,
}

impl Granted {
    fn range(&self) -> Range<u64> {
        self.placed.offset..self.placed.offset + self.size
    }
}

impl Space {
    fn new(capacity: u64) -> Self {
        let core = SpaceCore::new();
        core.open(1, Heap::new(0..capacity, None, Placement::BestFit, u32::MAX), None);
        Space(core)
    }

    fn allocate(&self, size: u64) -> Result<Granted, AllocError> {
        Ok(Granted { placed: self.0.allocate(size)?, size })
    }

    fn free(&self, range: Granted) {
        self.0.free(range.placed, Some(range.size));
    }

    /// Frees a range; returns how often that freed the core.
    fn end(&self, range: Granted) -> usize {
        self.0.free(range.placed, Some(range.size)).into()
    }

    fn grow(&self, capacity: u64) {
        self.0.grow(capacity).expect("larger than before");
    }

    fn cut(&self) {
        self.0.cut_now(2);
    }

    fn hint(&self) -> u64 {
        self.0.largest_free_hint()
    }

    fn check(&self) {
        self.0.check().expect("consistent metadata");
    }
}

/// Returns a space divided into ranges of these sizes, all in use.
fn full(sizes: &[u64]) -> (Arc<Space>, Vec<Granted>) {
    let space = Arc::new(Space::new(sizes.iter().sum()));
    let granted = sizes.iter().map(|size| space.allocate(*size).expect("there is room")).collect();
    assert_eq!(space.hint(), 0);
    (space, granted)
}

fn spawn(space: &Arc<Space>, work: impl FnOnce(&Space) + 'static) -> thread::JoinHandle<()> {
    let space = space.clone();
    thread::spawn(move || work(&space))
}

/// Returns whether `size` bytes, which are known to be free in one range, can be allocated.
fn must_fit(space: &Space, size: u64) {
    let hint = space.hint();
    assert!(hint >= size, "the hint is {hint}, but {size} bytes were freed before");
    let granted = space.allocate(size).expect("a request that fits succeeds");
    space.free(granted);
}

#[test]
fn a_free_that_happened_before_is_visible() {
    check(PREEMPTIONS, || {
        let (space, mut granted) = full(&[ALL]);
        let freed = Arc::new(AtomicUsize::new(0));
        let granted = granted.remove(0);
        let freeing = {
            let freed = freed.clone();
            spawn(&space, move |space| {
                space.free(granted);
                freed.store(1, Ordering::Release);
            })
        };
        if freed.load(Ordering::Acquire) == 1 {
            must_fit(&space, ALL);
        }
        freeing.join().unwrap();
        must_fit(&space, ALL);
        space.check();
    });
}

#[test]
fn two_frees_at_a_time_are_both_visible() {
    check(PREEMPTIONS, || {
        let (space, mut granted) = full(&[30, 20, 50]);
        let freed = Arc::new(AtomicUsize::new(0));
        // The middle one coalesces what the others leave.
        let (last, middle) = (granted.remove(2), granted.remove(1));
        let threads = [(middle, 20), (last, 50)].map(|(granted, size)| {
            let freed = freed.clone();
            spawn(&space, move |space| {
                space.free(granted);
                // At least its own free happened before: no thread allocates yet.
                assert!(space.hint() >= size);
                freed.fetch_add(1, Ordering::AcqRel);
            })
        });
        if freed.load(Ordering::Acquire) == 2 {
            assert!(space.hint() >= 70);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        must_fit(&space, 70);
        space.check();
    });
}

/// One thread frees and another requests: a request fails only because of a range that was in use.
#[test]
fn requests_beside_frees() {
    check(PREEMPTIONS, || {
        let (space, mut granted) = full(&[60, 40]);
        let low = granted.remove(0);
        let freeing = spawn(&space, move |space| space.free(low));
        let mine = space.allocate(60);
        match &mine {
            Ok(granted) => assert_eq!(granted.range(), 0..60),
            // The bytes that it reports as free were free at some moment of the call.
            Err(error) => assert!(
                matches!(
                    error,
                    AllocError::OutOfSpace { requested: 60, free: 0 | 60, largest_free: 0 }
                ),
                "{error:?}"
            ),
        }
        freeing.join().unwrap();
        if let Ok(granted) = mine {
            let error = space.allocate(60).expect_err("it is in use");
            assert_eq!(error, AllocError::OutOfSpace { requested: 60, free: 0, largest_free: 0 });
            space.free(granted);
        }
        must_fit(&space, 60);
        space.free(granted.remove(0));
        must_fit(&space, ALL);
        space.check();
    });
}

/// Two threads allocate and free at once: in the end everything is free, and the hint shows it.
#[test]
fn two_threads_allocate_and_free() {
    check(PREEMPTIONS, || {
        let space = Arc::new(Space::new(ALL));
        let threads = [40, 60].map(|size| {
            spawn(&space, move |space| {
                let granted = space.allocate(size).expect("there is room for both");
                space.free(granted);
                // The other thread has at most its own part.
                assert!(space.hint() >= size);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        must_fit(&space, ALL);
        space.check();
    });
}

#[test]
fn added_room_is_visible() {
    check(PREEMPTIONS, || {
        let (space, mut granted) = full(&[ALL]);
        let granted = granted.remove(0);
        let growing = spawn(&space, |space| {
            space.grow(2 * ALL);
            assert!(space.hint() >= ALL);
        });
        space.free(granted);
        assert!(space.hint() >= ALL);
        growing.join().unwrap();
        must_fit(&space, 2 * ALL);
        space.check();
    });
}

/// Preemptions of an order of a model with shards: an operation takes several locks.
const PREEMPTIONS_OF_SHARDS: usize = 2;
/// Stack of a thread that cuts a space or clears a shard, which makes new bins.
const LARGE_STACK: usize = 1 << 16;

/// Checks a model whose first thread has a large stack.
fn check_shards(run: fn()) {
    check(PREEMPTIONS_OF_SHARDS, move || {
        let first = thread::Builder::new().stack_size(LARGE_STACK).spawn(run);
        first.expect("a thread").join().unwrap();
    });
}

/// One thread frees a range of before the cut while another cuts the space. The free finds its
/// shard, and a request for both shards' bytes finds what was freed.
#[test]
fn a_free_beside_a_cut() {
    check_shards(|| {
        let (space, mut granted) = full(&[50, 50]);
        let (high, low) = (granted.remove(1), granted.remove(0));
        let freeing = spawn(&space, move |space| {
            space.free(low);
            assert!(space.hint() >= 50);
        });
        space.cut();
        freeing.join().unwrap();
        must_fit(&space, 50);
        space.free(high);
        must_fit(&space, ALL);
        space.check();
    });
}

/// Two threads contend for a space whose holder serves no other thread: where sizes are hot. One of
/// them cuts it.
#[test]
fn contention_cuts_a_space_that_does_not_combine() {
    static CUTS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    check_shards(|| {
        let (space, mut granted) = full(&[40, 20, 40]);
        space.0.set_combining(false);
        let (high, hole, low) = (granted.remove(2), granted.remove(1), granted.remove(0));
        space.free(hole);
        let freeing = spawn(&space, move |space| {
            space.free(low);
            must_fit(space, 40);
        });
        must_fit(&space, 20);
        must_fit(&space, 20);
        freeing.join().unwrap();
        CUTS.fetch_add(usize::from(space.0.shard_count() > 1), Ordering::Relaxed);
        space.free(high);
        must_fit(&space, ALL);
        space.check();
    });
    assert!(CUTS.load(Ordering::Relaxed) > 0, "no order cuts the space");
}

/// Two threads free the ranges on both sides of a start. A thread that learns of both can allocate
/// them as one.
#[test]
fn frees_on_both_sides_of_a_start() {
    check_shards(|| {
        let (space, mut granted) = full(&[50, 50]);
        space.cut();
        let freed = Arc::new(AtomicUsize::new(0));
        let (high, low) = (granted.remove(1), granted.remove(0));
        let freeing = {
            let freed = freed.clone();
            spawn(&space, move |space| {
                space.free(low);
                freed.fetch_add(1, Ordering::Release);
            })
        };
        // Examines the start while the other thread frees.
        assert!(space.allocate(ALL).is_err());
        space.free(high);
        if freed.load(Ordering::Acquire) == 1 {
            must_fit(&space, ALL);
        }
        freeing.join().unwrap();
        must_fit(&space, ALL);
        space.check();
    });
}

/// The allocator is dropped while the last allocations, of two shards, are freed: one of the three
/// threads frees the core.
#[test]
fn the_last_free_of_a_cut_space_ends_it() {
    check_shards(|| {
        let (space, mut granted) = full(&[50, 50]);
        space.cut();
        let ends = Arc::new(AtomicUsize::new(0));
        let (high, low) = (granted.remove(1), granted.remove(0));
        let freeing = {
            let ends = ends.clone();
            spawn(&space, move |space| {
                ends.fetch_add(space.end(low), Ordering::Relaxed);
            })
        };
        ends.fetch_add(usize::from(space.0.close()), Ordering::Relaxed);
        ends.fetch_add(space.end(high), Ordering::Relaxed);
        freeing.join().unwrap();
        assert_eq!(ends.load(Ordering::Relaxed), 1);
        assert!(!space.0.is_open(1));
    });
}
