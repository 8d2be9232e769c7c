//! Raw handles of every kind of space: plain data that may be copied, used too late, and invented.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kvmem::offset::{OffsetAllocator, Placement, RawError, RawHandle};
use kvmem::slab::ExtentCache;
use kvmem_testkit::driver::sharded::Sharded;
use kvmem_testkit::driver::tested_allocator::{OwnedRange, TestedAllocator};
use kvmem_testkit::op::{Cache, Config};
use kvmem_testkit::random::Random;

/// Returns the allocator's part of a handle.
pub(crate) fn id(handle: RawHandle) -> u64 {
    (handle.to_bits() >> 64) as u64
}

/// Returns the error of a space for a handle that it does not know.
pub(crate) fn stale(handle: RawHandle) -> RawError {
    let bits = handle.to_bits();
    RawError::Stale { slot: (bits >> 32) as u32, generation: bits as u32 }
}

/// Returns the error of the space of `own` for the handle of another one.
pub(crate) fn foreign(own: RawHandle, of: RawHandle) -> RawError {
    RawError::Foreign { allocator: id(own), handle_of: id(of) }
}

#[track_caller]
pub(crate) fn assert_all_calls_fail<A: TestedAllocator>(
    space: &A,
    handle: RawHandle,
    error: RawError,
) {
    let before = (space.metrics().allocated, space.metrics().live);
    assert_eq!(space.free_raw(handle), Err(error));
    assert_eq!(space.resolve_raw(handle), Err(error));
    assert_eq!(space.shrink_raw(handle, 1), Err(error));
    assert_eq!(space.extend_raw(handle, 1), Err(error));
    assert_eq!(space.adopt_raw(handle).map(drop), Err(error));
    assert_eq!((space.metrics().allocated, space.metrics().live), before);
    space.check().unwrap();
}

/// Makes a space; some sizes are hot from the beginning, and no others become so.
fn open<A: TestedAllocator>(capacity: u64, boundary: Option<u64>, hot: [u64; 4]) -> A {
    let cache = Cache { hot, auto_hot_sizes: false, max_cached_bytes: Some(capacity) };
    let placement = Placement::Renewal;
    A::open(&Config { capacity, boundary, placement, max_ranges: None, cache: Some(cache) })
        .expect("a good space")
}

/// The next allocation of a size takes the same range, and the old handle is not accepted for it:
/// neither while the range is cached, nor while another allocation has it.
fn a_handle_is_never_reused<A: TestedAllocator>(hot: [u64; 4], is_cached: bool) {
    let space: A = open(4096, None, hot);
    let mut seen = HashSet::new();
    let mut old = space.allocate_raw(4096).unwrap();
    for _ in 0..10_000 {
        assert!(seen.insert(old.handle.to_bits()));
        assert_eq!(space.free_raw(old.handle), Ok(4096));
        assert_eq!(space.free_raw(old.handle), Err(stale(old.handle)));
        let new = space.allocate_raw(4096).unwrap();
        assert_eq!(new.offset, old.offset);
        assert_eq!(space.free_raw(old.handle), Err(stale(old.handle)));
        old = new;
    }
    for bit in 0..2 {
        let forged = RawHandle::from_bits(old.handle.to_bits() ^ 1 << bit);
        assert_all_calls_fail(&space, forged, stale(forged));
    }
    assert_eq!(space.free_raw(old.handle), Ok(4096));
    assert_eq!(space.cached().0, usize::from(is_cached));
    assert_all_calls_fail(&space, old.handle, stale(old.handle));
    // The same range, allocated without a handle and with another one.
    let own = space.allocate(4096).unwrap();
    assert_all_calls_fail(&space, old.handle, stale(old.handle));
    let raw = A::make_raw(Some(&space), own).unwrap();
    assert_all_calls_fail(&space, old.handle, stale(old.handle));
    assert_eq!(space.resolve_raw(raw), Ok(0..4096));
    assert_eq!((space.shrink_raw(raw, 10), space.extend_raw(raw, 500)), (Ok(()), Ok(())));
    assert_eq!(space.adopt_raw(raw).map(|own| own.range()), Ok(0..500));
    assert_all_calls_fail(&space, raw, stale(raw));
    assert_eq!(space.metrics().live, 0);
}

#[test]
fn no_handle_is_reused() {
    a_handle_is_never_reused::<OffsetAllocator>([0; 4], false);
    a_handle_is_never_reused::<ExtentCache>([0; 4], false);
    a_handle_is_never_reused::<ExtentCache>([4096, 0, 0, 0], true);
}

fn other_handles_are_foreign<A: TestedAllocator>(boundary: Option<u64>) {
    let open = || open::<A>(1000, boundary, [10, 0, 0, 0]);
    let (a, b) = (open(), open());
    let (in_a, in_b) = (a.allocate_raw(10).unwrap().handle, b.allocate_raw(10).unwrap().handle);
    for handle in [in_b, RawHandle::from_bits(0), RawHandle::from_bits(u128::MAX)] {
        let Err(RawError::Foreign { handle_of, .. }) = a.resolve_raw(handle) else {
            panic!("{handle:?} is foreign")
        };
        assert_eq!(handle_of, id(handle));
    }
    // The successor of a dropped space, on the same core or not, is a different space.
    drop(b);
    for _ in 0..100 {
        let next = open();
        let own = next.allocate_raw(10).unwrap().handle;
        for (space, handle) in [(&next, in_b), (&a, own)] {
            let error = space.free_raw(handle).unwrap_err();
            assert!(
                matches!(error, RawError::Foreign { handle_of, .. } if handle_of == id(handle))
            );
            assert_all_calls_fail(space, handle, error);
        }
        if boundary.is_none() {
            assert_eq!(next.free_raw(in_b), Err(foreign(own, in_b)));
            assert_eq!(a.free_raw(own), Err(foreign(in_a, own)));
        }
    }
    assert_eq!(a.resolve_raw(in_a).map(|range| range.end - range.start), Ok(10));
}

#[test]
fn handles_of_other_spaces_are_foreign() {
    other_handles_are_foreign::<OffsetAllocator>(None);
    other_handles_are_foreign::<Sharded<OffsetAllocator>>(None);
    other_handles_are_foreign::<ExtentCache>(None);
}

fn forged_handles_fail<A: TestedAllocator>() {
    let space: A = open(1 << 20, None, [1, 2, 3, 4]);
    let good: Vec<RawHandle> =
        (1..=100).map(|size| space.allocate_raw(size).unwrap().handle).collect();
    (1..=30).for_each(|size| drop(space.allocate(size).unwrap()));
    let known: HashSet<RawHandle> = good.iter().copied().collect();
    let id = good[0].to_bits() >> 64;
    let mut random = Random::new(11);
    for step in 0..20_000 {
        let bits = match step % 4 {
            0 => u128::from(random.bits()) << 64 | u128::from(random.bits()),
            // Of this space, with any slot and any generation.
            1 => id << 64 | u128::from(random.bits()),
            // Existing slots and generations, mixed.
            2 => id << 64 | u128::from(random.below(300)) << 32 | u128::from(random.below(300)),
            _ => good[random.below(100) as usize].to_bits() ^ 1 << random.below(128),
        };
        let handle = RawHandle::from_bits(bits);
        assert_eq!(handle.to_bits(), bits);
        if !known.contains(&handle) {
            assert!(
                space.resolve_raw(handle).is_err() && space.free_raw(handle).is_err(),
                "{bits:#x}"
            );
        }
    }
    assert_eq!(space.metrics().live, 100);
    // An owned allocation has no handle that could be guessed.
    let _own = space.allocate(100).unwrap();
    let freed = (0..400u128)
        .filter(|slot| space.free_raw(RawHandle::from_bits(id << 64 | slot << 32)).is_ok());
    assert_eq!(freed.count(), 0);
    for (handle, size) in good.into_iter().zip(1..) {
        assert_eq!(space.free_raw(handle), Ok(size));
    }
    space.check().unwrap();
}

#[test]
fn forged_handles_are_rejected() {
    forged_handles_fail::<OffsetAllocator>();
    forged_handles_fail::<ExtentCache>();
}

/// Two threads free the same handle: one gets the range, the other one an error. A third thread
/// resolves the handle meanwhile.
fn one_free_wins<A: TestedAllocator + Sync>() {
    const ROUNDS: u64 = 20_000;
    let space: A = open(1 << 20, None, [100, 0, 0, 0]);
    let handle = [AtomicU64::new(0), AtomicU64::new(0)];
    let (won, barrier) = (AtomicU64::new(0), Barrier::new(2));
    let current = || {
        let word = |at: usize| u128::from(handle[at].load(Ordering::Relaxed));
        RawHandle::from_bits(word(0) << 64 | word(1))
    };
    let free = |makes: bool| {
        for round in 0..ROUNDS {
            if makes {
                let bits = space.allocate_raw(100).unwrap().handle.to_bits();
                handle[0].store((bits >> 64) as u64, Ordering::Relaxed);
                handle[1].store(bits as u64, Ordering::Relaxed);
            }
            barrier.wait();
            match space.free_raw(current()) {
                Ok(size) => assert_eq!((size, won.fetch_add(1, Ordering::Relaxed)), (100, round)),
                Err(error) => assert_eq!(error, stale(current())),
            }
            barrier.wait();
            assert_eq!(won.load(Ordering::Relaxed), round + 1);
            barrier.wait();
        }
    };
    let resolve = |_, _| {
        if let Ok(range) = space.resolve_raw(current()) {
            assert_eq!(range.end - range.start, 100);
        }
    };
    crate::child::while_threads(1, resolve, || {
        thread::scope(|scope| {
            scope.spawn(|| free(false));
            free(true);
        });
    });
    assert_eq!((space.metrics().live, space.metrics().allocated), (0, 0));
    space.check().unwrap();
}

#[test]
fn one_of_two_concurrent_frees_wins() {
    one_free_wins::<OffsetAllocator>();
    one_free_wins::<ExtentCache>();
}
