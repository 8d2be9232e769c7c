//! Children made by fork while other threads allocate.

use kvmem::offset::{Allocation, OffsetAllocator};

use super::space;
use crate::child::fork_while_threads;

const CAPACITY: u64 = 1 << 20;

/// The work of a thread while another forks: nearly all the time it holds the lock of `shared`, of
/// its own space, or of the registry.
fn work(shared: &OffsetAllocator, call: u64) {
    let size = call * 391 % 3000 + 1;
    let held: Vec<Allocation> = (0..40).map_while(|_| shared.allocate(size).ok()).collect();
    let raw = shared.allocate_raw(size);
    shared.map();
    drop(held);
    if let Ok(raw) = raw {
        assert_eq!(shared.free_raw(raw.handle), Ok(size));
    }
    drop(space(CAPACITY, None));
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
    let child = || {
        let inherited = shared.allocate(100).expect("there is plenty");
        || child(&shared, inherited)
    };
    fork_while_threads(60, |_, call| work(&shared, call), child);
    assert_eq!((shared.metrics().allocated, shared.metrics().largest_free), (0, CAPACITY));
    shared.check().unwrap();
}
