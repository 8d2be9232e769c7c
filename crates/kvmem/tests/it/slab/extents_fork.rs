//! Forked children while other threads work on cached spaces.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvmem::offset::{OffsetAllocator, RawHandle};
use kvmem::slab::{Extent, ExtentCache};

use crate::child::forked;

const CAPACITY: u64 = 1 << 20;

fn space(auto: bool) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(CAPACITY)).auto_hot_sizes(auto);
    builder.hot_sizes([100, 200]).max_cached_bytes(CAPACITY).build().expect("valid settings")
}

/// Stops the other threads, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Uses the inherited space and a new one in a child; returns the number of the step that fails, or
/// 0.
fn child(space: &ExtentCache) -> i32 {
    let pairs = |space: &ExtentCache| (1..2000).step_by(7).all(|size| space.allocate(size).is_ok());
    let hot = |space: &ExtentCache| (0..100).all(|_| space.allocate(100).is_ok());
    if !pairs(space) || !hot(space) {
        return 1;
    }
    space.trim();
    if space.check().is_err() || space.stats().cached_ranges != 0 {
        return 2;
    }
    let raw = space.allocate_raw(100).map(|raw| space.free_raw(raw.handle));
    if raw != Ok(Ok(100)) {
        return 3;
    }
    let own = self::space(true);
    let held: Vec<Extent> = (0..100).filter_map(|_| own.allocate(100).ok()).collect();
    if held.len() != 100 || !pairs(&own) {
        return 4;
    }
    drop(held);
    if own.allocate(CAPACITY).is_err() || own.check().is_err() {
        return 5;
    }
    drop(own);
    // Threads that the child itself starts.
    let ok = thread::scope(|scope| {
        let worker = scope.spawn(|| hot(space));
        worker.join().unwrap_or(false) && hot(space)
    });
    if ok { 0 } else { 6 }
}

#[test]
fn a_child_finds_the_space_consistent() {
    let space = space(true);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3u64 {
            let (space, done) = (&space, &done);
            scope.spawn(move || {
                let mut size = seed * 10;
                while !done.load(Ordering::Relaxed) {
                    // New sizes become hot, and others are forgotten.
                    size = (size + 391) % 3000 + 1;
                    let held: Vec<Extent> =
                        (0..60).map_while(|_| space.allocate(size).ok()).collect();
                    let raw: Vec<_> = (0..20).map_while(|_| space.allocate_raw(100).ok()).collect();
                    drop(held);
                    raw.into_iter().for_each(|raw| assert_eq!(space.free_raw(raw.handle), Ok(100)));
                    match size % 5 {
                        0 => space.trim(),
                        1 => assert_eq!(
                            space.map().iter().map(|range| range.size).sum::<u64>(),
                            CAPACITY
                        ),
                        _ => (),
                    }
                }
            });
        }
        let _end = StopOnDrop(&done);
        for round in 0..60 {
            assert_eq!(forked(|| child(&space)), 0, "round {round}");
        }
    });
    space.trim();
    assert_eq!((space.metrics().allocated, space.metrics().largest_free), (0, CAPACITY));
    space.check().unwrap();
}

/// Spaces come and go and detect sizes while another thread forks. The last handle of a space is
/// dropped in the child.
#[test]
fn a_child_drops_a_space_that_was_detecting_sizes() {
    let done = AtomicBool::new(false);
    let space = space(true);
    thread::scope(|scope| {
        for _ in 0..2 {
            let (space, done) = (&space, &done);
            scope.spawn(move || {
                let mut size = 0;
                while !done.load(Ordering::Relaxed) {
                    size = size % 20_000 + 1;
                    (0..9).for_each(|_| drop(space.allocate(size).expect("the space has room")));
                }
            });
        }
        let _end = StopOnDrop(&done);
        for round in 0..60 {
            let clone = space.clone();
            let status = forked(|| {
                // The last handle in this process: the others belong to threads that do not exist
                // here.
                // SAFETY: the parent's handle is never used again in the child.
                let original = unsafe { std::ptr::read(&raw const space) };
                drop((original, clone));
                let own = self::space(true);
                i32::from(own.allocate(CAPACITY).is_err())
            });
            assert_eq!(status, 0, "round {round}");
        }
    });
}

/// A raw handle whose range another thread was changing is valid in the child and has one of the
/// two lengths.
#[test]
fn a_child_finds_consistent_handles() {
    let space = space(false);
    let raw: RawHandle = space.allocate_raw(100).unwrap().handle;
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(space.extend_raw(raw, 300), Ok(()));
                assert_eq!(space.shrink_raw(raw, 100), Ok(()));
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = StopOnDrop(&done);
        for round in 0..60 {
            let status =
                forked(|| match space.resolve_raw(raw).map(|range| range.end - range.start) {
                    Ok(100 | 300) => {
                        i32::from(space.free_raw(raw).is_err() || space.check().is_err())
                    }
                    _ => 2,
                });
            assert_eq!(status, 0, "round {round}");
        }
    });
    assert!(changes.load(Ordering::Relaxed) > 0);
}
