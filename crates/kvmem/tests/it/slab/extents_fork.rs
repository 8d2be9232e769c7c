//! Forked children while other threads work on cached spaces.

use std::thread;

use kvmem::offset::OffsetAllocator;
use kvmem::slab::{Extent, ExtentCache};

use crate::child::fork_while_threads;

const CAPACITY: u64 = 1 << 20;

fn space(auto: bool) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(CAPACITY)).auto_hot_sizes(auto);
    builder.hot_sizes([100, 200]).max_cached_bytes(CAPACITY).build().expect("valid settings")
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
#[cfg_attr(miri, ignore = "forks")]
fn a_child_finds_the_space_consistent() {
    let space = space(true);
    let work = |thread, call| {
        // New sizes become hot, and others are forgotten.
        let size = (thread * 10 + call * 391) % 3000 + 1;
        let held: Vec<Extent> = (0..60).map_while(|_| space.allocate(size).ok()).collect();
        let raw: Vec<_> = (0..20).map_while(|_| space.allocate_raw(100).ok()).collect();
        drop(held);
        raw.into_iter().for_each(|raw| assert_eq!(space.free_raw(raw.handle), Ok(100)));
        match size % 5 {
            0 => space.trim(),
            1 => assert_eq!(space.map().iter().map(|range| range.size).sum::<u64>(), CAPACITY),
            _ => (),
        }
    };
    fork_while_threads(60, work, || || child(&space));
    space.trim();
    assert_eq!((space.metrics().allocated, space.metrics().largest_free), (0, CAPACITY));
    space.check().unwrap();
}

/// Spaces come and go and detect sizes while another thread forks. The last handle of a space is
/// dropped in the child.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_drops_a_space_that_was_detecting_sizes() {
    let space = space(true);
    let work = |_, call| {
        let size = call % 20_000 + 1;
        (0..9).for_each(|_| drop(space.allocate(size).expect("the space has room")));
    };
    let child = || {
        let clone = space.clone();
        || {
            // The last handle in this process: the others belong to threads that do not exist
            // here.
            // SAFETY: the parent's handle is never used again in the child.
            let original = unsafe { std::ptr::read(&raw const space) };
            drop((original, clone));
            let own = self::space(true);
            i32::from(own.allocate(CAPACITY).is_err())
        }
    };
    fork_while_threads(60, work, child);
}

/// A raw handle whose range another thread was changing is valid in the child and has one of the
/// two lengths.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_finds_consistent_handles() {
    let space = space(false);
    let raw = space.allocate_raw(100).unwrap().handle;
    let work = |thread, _| {
        if thread == 0 {
            assert_eq!(space.extend_raw(raw, 300), Ok(()));
            assert_eq!(space.shrink_raw(raw, 100), Ok(()));
        }
    };
    let child = || match space.resolve_raw(raw).map(|range| range.end - range.start) {
        Ok(100 | 300) => i32::from(space.free_raw(raw).is_err() || space.check().is_err()),
        _ => 2,
    };
    fork_while_threads(60, work, || child);
}
