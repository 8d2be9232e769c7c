//! Raw handles of cached spaces: plain data that may be copied, kept too long, forged, and used by
//! two threads at once.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvmem::offset::{AllocError, OffsetAllocator, RawError, RawHandle};
use kvmem::slab::{ExtentCache, ExtentSpaceRef};
use kvmem_testkit::random::Random;

fn named(capacity: u64, hot: &[u64]) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).auto_hot_sizes(false);
    builder
        .hot_sizes(hot.iter().copied())
        .max_cached_bytes(capacity)
        .build()
        .expect("valid settings")
}

fn id(handle: RawHandle) -> u64 {
    (handle.to_bits() >> 64) as u64
}

fn stale(handle: RawHandle) -> RawError {
    let bits = handle.to_bits();
    RawError::Stale { slot: (bits >> 32) as u32, generation: bits as u32 }
}

#[track_caller]
fn fails_all(space: &ExtentCache, handle: RawHandle, error: RawError) {
    let before = (space.metrics().allocated, space.metrics().live);
    assert_eq!(space.free_raw(handle), Err(error));
    assert_eq!(space.resolve_raw(handle), Err(error));
    assert_eq!(space.shrink_raw(handle, 1), Err(error));
    assert_eq!(space.extend_raw(handle, 1), Err(error));
    assert_eq!(space.adopt_raw(handle).map(drop), Err(error));
    assert_eq!((space.metrics().allocated, space.metrics().live), before);
    space.check().unwrap();
}

/// For a hot size and for another one: the range is cached when the old handle is used, and in use
/// by another extent afterwards.
#[test]
fn a_handle_is_never_reused() {
    for hot in [true, false] {
        let space = named(4096, if hot { &[4096] } else { &[] });
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
            fails_all(&space, forged, stale(forged));
        }
        assert_eq!(space.free_raw(old.handle), Ok(4096));
        assert_eq!(space.stats().cached_ranges, usize::from(hot));
        fails_all(&space, old.handle, stale(old.handle));
        // The same range, in use by an extent without a handle.
        let own = space.allocate(4096).unwrap();
        fails_all(&space, old.handle, stale(old.handle));
        let raw = space.make_raw(own).unwrap();
        fails_all(&space, old.handle, stale(old.handle));
        assert_eq!(space.resolve_raw(raw.handle), Ok(0..4096));
        drop(space.adopt_raw(raw.handle).unwrap());
        fails_all(&space, raw.handle, stale(raw.handle));
    }
}

#[test]
fn handles_of_other_spaces_are_foreign() {
    let (space, other) = (named(1000, &[10]), named(1000, &[10]));
    let layer = OffsetAllocator::new(1000).unwrap();
    let (own, theirs) =
        (space.allocate_raw(10).unwrap().handle, other.allocate_raw(10).unwrap().handle);
    let below = layer.allocate_raw(10).unwrap().handle;
    let foreign =
        |to: RawHandle, of: RawHandle| RawError::Foreign { allocator: id(to), handle_of: id(of) };
    fails_all(&space, theirs, foreign(own, theirs));
    fails_all(&other, own, foreign(theirs, own));
    fails_all(&space, below, foreign(own, below));
    assert_eq!(layer.free_raw(own), Err(foreign(below, own)));
    assert_eq!(layer.resolve_raw(theirs), Err(foreign(below, theirs)));
    // An extent of another space gets no handle here.
    let extent = other.allocate(20).unwrap();
    let extent = space.make_raw(extent).unwrap_err();
    assert_eq!(extent.len(), 20);
    drop(other);
    for _ in 0..100 {
        let next = named(1000, &[10]);
        let first = next.allocate_raw(10).unwrap().handle;
        fails_all(&next, theirs, foreign(first, theirs));
        fails_all(&space, first, foreign(own, first));
    }
    assert_eq!(space.resolve_raw(own).map(|range| range.end - range.start), Ok(10));
}

/// An extent can become an allocation of the offset layer, and that can become a raw handle of the
/// offset layer. The handle names the same slot but is stale here.
#[test]
fn handles_of_the_offset_layer_are_stale() {
    let space = named(1 << 20, &[10]);
    for _ in 0..20 {
        let below = space.allocate(10).unwrap().into_allocation().into_raw();
        fails_all(&space, below, stale(below));
    }
    assert_eq!(space.metrics().live, 20);
}

#[test]
fn forged_handles_are_rejected() {
    let space = named(1 << 20, &(1..=30).collect::<Vec<_>>());
    let good: Vec<RawHandle> =
        (1..=100).map(|size| space.allocate_raw(size).unwrap().handle).collect();
    (1..=30).for_each(|size| drop(space.allocate(size).unwrap()));
    let known: HashSet<RawHandle> = good.iter().copied().collect();
    let id = good[0].to_bits() >> 64;
    let mut random = Random::new(11);
    for step in 0..20_000 {
        let bits = match step % 4 {
            0 => u128::from(random.bits()) << 64 | u128::from(random.bits()),
            1 => id << 64 | u128::from(random.bits()),
            2 => id << 64 | u128::from(random.below(300)) << 32 | u128::from(random.below(300)),
            _ => good[random.below(100) as usize].to_bits() ^ 1 << random.below(128),
        };
        let handle = RawHandle::from_bits(bits);
        if !known.contains(&handle) {
            assert!(
                space.resolve_raw(handle).is_err() && space.free_raw(handle).is_err(),
                "{bits:#x}"
            );
        }
    }
    assert_eq!(space.metrics().live, 100);
    for (handle, size) in good.into_iter().zip(1..) {
        assert_eq!(space.free_raw(handle), Ok(size));
    }
    space.check().unwrap();
}

/// Ranges that no handle can reach any more are freed with the space: extents that outlive it find
/// consistent metadata.
#[test]
fn remaining_handles_end_with_the_space() {
    for _ in 0..20 {
        let space = named(1 << 20, &[100]);
        let mut own = space.allocate(100).unwrap();
        let handles: Vec<_> =
            (0..50).map(|i| space.allocate_raw(100 + i % 2 * 5000).unwrap()).collect();
        space.free_raw(handles[7].handle).unwrap();
        drop(space);
        assert_eq!(own.extend((1 << 20) - own.offset()), Ok(()));
    }
}

/// Two threads free the same handle: one gets the range, the other one an error. A third thread
/// resolves the handle meanwhile.
#[test]
fn one_of_two_concurrent_frees_wins() {
    const ROUNDS: usize = 20_000;
    let space = named(1 << 20, &[100]);
    let handle = [AtomicU64::new(0), AtomicU64::new(0)];
    let (won, barrier, done) = (AtomicU64::new(0), Barrier::new(2), AtomicBool::new(false));
    let current = || {
        let word = |at: usize| u128::from(handle[at].load(Ordering::Relaxed));
        RawHandle::from_bits(word(0) << 64 | word(1))
    };
    let freer = |makes: bool| {
        for round in 0..ROUNDS as u64 {
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
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if let Ok(range) = space.resolve_raw(current()) {
                    assert_eq!(range.end - range.start, 100);
                }
            }
        });
        let other = scope.spawn(|| freer(false));
        freer(true);
        other.join().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!((space.metrics().live, space.metrics().allocated), (0, 0));
    space.check().unwrap();
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
