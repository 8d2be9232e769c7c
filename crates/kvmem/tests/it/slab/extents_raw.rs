//! Raw handles of cached spaces, where they differ from those of others.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmem::offset::{AllocError, OffsetAllocator, RawError};
use kvmem::slab::ExtentSpaceRef;

use super::named;
use crate::handles::{assert_all_calls_fail, foreign, stale};

/// A handle of the offset layer and an extent of another space are foreign.
#[test]
fn handles_of_the_offset_layer_are_foreign() {
    let (space, other) = (named(1000, &[10]), named(1000, &[10]));
    let layer = OffsetAllocator::new(1000).unwrap();
    let (own, below) =
        (space.allocate_raw(10).unwrap().handle, layer.allocate_raw(10).unwrap().handle);
    assert_all_calls_fail(&space, below, foreign(own, below));
    assert_all_calls_fail(&layer, own, foreign(below, own));
    let extent = other.allocate(20).unwrap();
    assert_eq!(space.make_raw(extent).unwrap_err().len(), 20);
}

/// An extent can become an allocation of the offset layer, and that can become a raw handle of the
/// offset layer. The handle names the same slot but is stale here.
#[test]
fn handles_of_the_offset_layer_are_stale() {
    let space = named(1 << 20, &[10]);
    for _ in 0..20 {
        let below = space.allocate(10).unwrap().into_allocation().into_raw();
        assert_all_calls_fail(&space, below, stale(below));
    }
    assert_eq!(space.metrics().live, 20);
}

/// One thread changes the length of a range repeatedly, which takes longer than a resolve. A
/// resolve returns one of the lengths.
#[test]
fn a_resolve_sees_one_length_or_the_other() {
    let space = named(1 << 40, &[100]);
    let raw = space.allocate_raw(100).unwrap();
    let (long, done, start) = (1 << 33, AtomicBool::new(false), Barrier::new(3));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                // At least once, even if the other thread has finished before this one starts.
                loop {
                    let range = space.resolve_raw(raw.handle).expect("the handle stays good");
                    assert_eq!(range.start, raw.offset);
                    let size = range.end - range.start;
                    assert!([100, 50, long].contains(&size), "{size}");
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        start.wait();
        for _ in 0..20_000 {
            assert_eq!(space.extend_raw(raw.handle, long), Ok(()));
            assert_eq!(space.shrink_raw(raw.handle, 50), Ok(()));
            let max = (1 << 40) - raw.offset;
            let failed =
                RawError::Failed(AllocError::TooLarge { requested: (1 << 40) + 1, limit: 1 << 40 });
            assert_eq!(space.extend_raw(raw.handle, (1 << 40) + 1), Err(failed), "of {max}");
            assert_eq!(space.extend_raw(raw.handle, 100), Ok(()));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(space.free_raw(raw.handle), Ok(100));
}

/// Counts extents with a raw handle only, and neither other extents nor cached ranges.
#[test]
fn raw_extents_are_counted() {
    let space = named(1 << 30, &[4096]);
    let (a, b) = (space.allocate_raw(4096).unwrap(), space.allocate_raw(5 << 20).unwrap());
    let held = space.allocate(4096).unwrap();
    assert_eq!(space.raw_extents(), 2);
    space.shrink_raw(b.handle, 100).unwrap();
    space.free_raw(a.handle).unwrap();
    space.free_raw(a.handle).unwrap_err();
    assert_eq!(space.raw_extents(), 1);
    let other = space.make_raw(held).unwrap();
    let adopted = space.adopt_raw(b.handle).unwrap();
    assert_eq!((space.raw_extents(), adopted.len()), (1, 100));
    space.free_raw(other.handle).unwrap();
    assert_eq!(space.raw_extents(), 0);
}

/// A reference names the space by number: it is safe at any time, and the limit counts what is in
/// use, not what is cached.
#[test]
fn a_space_reference_outlives_its_space() {
    let space = named(1 << 20, &[4096]);
    let reference = space.space_ref();
    let live: Vec<_> = (0..10).map(|_| reference.allocate_raw(4096, 10).unwrap().handle).collect();
    let full = reference.allocate_raw(4096, 10);
    assert_eq!(full, Err(RawError::Failed(AllocError::TooManyRanges { ranges: 10 })));
    for &handle in &live[..5] {
        assert_eq!(ExtentSpaceRef::free_raw(reference.number, handle), Ok(()));
        assert_eq!(ExtentSpaceRef::free_raw(reference.number, handle), Err(stale(handle)));
    }
    assert!(space.stats().cached_ranges > 0, "{:?}", space.stats());
    // Of another size: cached ranges count against the limit until they are reclaimed.
    let others: Vec<_> = (0..5).map(|_| reference.allocate_raw(100, 10).unwrap().handle).collect();
    let full = reference.allocate_raw(100, 10);
    assert_eq!(full, Err(RawError::Failed(AllocError::TooManyRanges { ranges: 10 })));
    assert_eq!(space.free_raw(others[0]), Ok(100));
    assert_eq!((space.metrics().live, space.raw_extents()), (9, 9));
    let unknown = ExtentSpaceRef { number: u32::MAX >> 1, ..reference };
    for wrong in [unknown, ExtentSpaceRef { id: 0, ..reference }] {
        assert!(!wrong.is_open());
        let foreign = RawError::Foreign { allocator: 0, handle_of: wrong.id };
        assert_eq!(wrong.allocate_raw(4096, 10), Err(foreign));
    }
    assert!(reference.is_open());
    drop(space);
    assert!(!reference.is_open());
    let foreign = RawError::Foreign { allocator: 0, handle_of: reference.id };
    assert_eq!(ExtentSpaceRef::free_raw(reference.number, live[7]), Err(foreign));
    assert_eq!(reference.allocate_raw(4096, 10), Err(foreign));
    // The next space may have the number, and is another one.
    let next = named(1 << 20, &[4096]);
    let kept = next.allocate_raw(4096).unwrap();
    assert_eq!(ExtentSpaceRef::free_raw(next.space_ref().number, live[7]), Err(foreign));
    assert_eq!(next.free_raw(kept.handle), Ok(4096));
}

/// Each handle is freed by its thread or by the end of the space. An extent that outlives the space
/// can take all bytes behind it then: none is lost. The metadata detects a range freed twice.
#[test]
fn handles_are_freed_while_their_space_ends() {
    for round in 0..200 {
        let space = named(1 << 20, if round % 2 == 0 { &[4096] } else { &[] });
        let reference = space.space_ref();
        let mut own = space.allocate(100).unwrap();
        let handles: Vec<_> = (0..64).map(|_| space.allocate_raw(4096).unwrap().handle).collect();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for &handle in &handles {
                    let freed = ExtentSpaceRef::free_raw(reference.number, handle);
                    assert!(
                        matches!(
                            freed,
                            Ok(()) | Err(RawError::Foreign { .. } | RawError::Stale { .. })
                        ),
                        "{freed:?}"
                    );
                }
            });
            start.wait();
            drop(space);
        });
        assert!(!reference.is_open());
        for &handle in &handles {
            assert!(ExtentSpaceRef::free_raw(reference.number, handle).is_err());
        }
        assert_eq!(own.extend((1 << 20) - own.offset()), Ok(()), "round {round}");
    }
}
