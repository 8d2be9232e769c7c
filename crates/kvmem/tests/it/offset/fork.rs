//! Children made by fork while other threads allocate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmem::offset::{Allocation, OffsetAllocator};

use super::space;
use crate::child::forked;

const CAPACITY: u64 = 1 << 20;
const FORKS: usize = 60;

/// Ends the other threads' work, even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The work of a thread while another forks: nearly all the time it holds the lock of `shared`, of
/// its own space, or of the registry.
fn work(shared: &OffsetAllocator, done: &AtomicBool) {
    let mut size = 1;
    while !done.load(Ordering::Relaxed) {
        size = (size + 391) % 3000 + 1;
        let held: Vec<Allocation> = (0..40).map_while(|_| shared.allocate(size).ok()).collect();
        let raw = shared.allocate_raw(size);
        shared.map();
        drop(held);
        if let Ok(raw) = raw {
            assert_eq!(shared.free_raw(raw.handle), Ok(size));
        }
        drop(space(CAPACITY, None));
    }
}

/// Uses an inherited space and a new one in the child; returns the number of the step that fails,
/// or 0.
fn child(shared: &OffsetAllocator, inherited: Allocation) -> i32 {
    if !(1..2000).step_by(7).all(|size| shared.allocate(size).is_ok()) {
        return 1;
    }
    drop(inherited);
    let raw = shared.allocate_raw(100).map(|raw| shared.free_raw(raw.handle));
    if raw != Ok(Ok(100)) || shared.check().is_err() {
        return 2;
    }
    for _ in 0..100 {
        let own = space(CAPACITY, None);
        if own.allocate(CAPACITY).is_err() || own.check().is_err() {
            return 3;
        }
    }
    0
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_finds_every_lock_free() {
    let shared = space(CAPACITY, None);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| work(&shared, &done));
        }
        let _end = End(&done);
        for round in 0..FORKS {
            let inherited = shared.allocate(100).expect("there is plenty");
            let mut given = Some(inherited);
            let status = forked(|| child(&shared, given.take().expect("given once")));
            assert_eq!(status, 0, "round {round}");
        }
    });
    assert_eq!((shared.metrics().allocated, shared.metrics().largest_free), (0, CAPACITY));
    shared.check().unwrap();
}
