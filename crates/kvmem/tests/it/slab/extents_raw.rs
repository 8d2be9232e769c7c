//! Raw handles of cached spaces: plain data that may be copied, kept too long, made up, and used by
//! two threads at once.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvmem::offset::{AllocError, OffsetAllocator, RawError, RawHandle};
use kvmem::slab::ExtentCache;
use kvmem_testkit::random::Random;

fn named(capacity: u64, hot: &[u64]) -> ExtentCache {
    let builder = ExtentCache::builder(OffsetAllocator::builder(capacity)).auto_hot_sizes(false);
    builder
        .hot_sizes(hot.iter().copied())
        .max_cached_bytes(capacity)
        .build()
        .expect("good settings")
}

fn id(handle: RawHandle) -> u64 {
    (handle.to_bits() >> 64) as u64
}

fn stale(handle: RawHandle) -> RawError {
    let bits = handle.to_bits();
    RawError::Stale { slot: (bits >> 32) as u32, generation: bits as u32 }
}

#[track_caller]
fn refuses_all(space: &ExtentCache, handle: RawHandle, error: RawError) {
    let before = (space.metrics().allocated, space.metrics().live);
    assert_eq!(space.free_raw(handle), Err(error));
    assert_eq!(space.resolve_raw(handle), Err(error));
    assert_eq!(space.shrink_raw(handle, 1), Err(error));
    assert_eq!(space.extend_raw(handle, 1), Err(error));
    assert_eq!(space.adopt_raw(handle).map(drop), Err(error));
    assert_eq!((space.metrics().allocated, space.metrics().live), before);
    space.check().unwrap();
}

/// Of a cached size and of another: the range lies in a cache when the old handle is used, then
/// somebody else has it.
#[test]
fn a_handle_does_not_come_back() {
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
            refuses_all(&space, forged, stale(forged));
        }
        assert_eq!(space.free_raw(old.handle), Ok(4096));
        assert_eq!(space.stats().cached_ranges, usize::from(hot));
        refuses_all(&space, old.handle, stale(old.handle));
        // The same range, as somebody's who has no handle.
        let own = space.allocate(4096).unwrap();
        refuses_all(&space, old.handle, stale(old.handle));
        let sealed = space.seal_raw(own).unwrap();
        refuses_all(&space, old.handle, stale(old.handle));
        assert_eq!(space.resolve_raw(sealed.handle), Ok(0..4096));
        drop(space.adopt_raw(sealed.handle).unwrap());
        refuses_all(&space, sealed.handle, stale(sealed.handle));
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
    refuses_all(&space, theirs, foreign(own, theirs));
    refuses_all(&other, own, foreign(theirs, own));
    refuses_all(&space, below, foreign(own, below));
    assert_eq!(layer.free_raw(own), Err(foreign(below, own)));
    assert_eq!(layer.resolve_raw(theirs), Err(foreign(below, theirs)));
    // An extent of another space is not sealed here.
    let extent = other.allocate(20).unwrap();
    let extent = space.seal_raw(extent).unwrap_err();
    assert_eq!(extent.size(), 20);
    drop(other);
    for _ in 0..100 {
        let next = named(1000, &[10]);
        let first = next.allocate_raw(10).unwrap().handle;
        refuses_all(&next, theirs, foreign(first, theirs));
        refuses_all(&space, first, foreign(own, first));
    }
    assert_eq!(space.resolve_raw(own).map(|range| range.end - range.start), Ok(10));
}

/// An extent may become an allocation of the books, and that a raw one of theirs: its handle names
/// the same slot, and is none here.
#[test]
fn handles_of_the_books_are_stale() {
    let space = named(1 << 20, &[10]);
    for _ in 0..20 {
        let below = space.allocate(10).unwrap().into_allocation().into_raw();
        refuses_all(&space, below, stale(below));
    }
    assert_eq!(space.metrics().live, 20);
}

#[test]
fn made_up_handles_are_refused() {
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

/// What nobody can reach any more is freed with the space: extents that outlive it find their books
/// in order.
#[test]
fn handles_that_are_left_go_with_the_space() {
    for _ in 0..20 {
        let space = named(1 << 20, &[100]);
        let mut own = space.allocate(100).unwrap();
        let left: Vec<_> =
            (0..50).map(|i| space.allocate_raw(100 + i % 2 * 5000).unwrap()).collect();
        space.free_raw(left[7].handle).unwrap();
        drop(space);
        assert_eq!(own.extend((1 << 20) - own.offset()), Ok(()));
    }
}

/// Two threads free the same handle: one gets the range, the other is told. Meanwhile a third one
/// looks.
#[test]
fn of_two_that_free_one_wins() {
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

/// One changes the length of a range again and again, which takes longer than a look. Who looks
/// sees one of the lengths.
#[test]
fn who_resolves_sees_one_length_or_the_other() {
    let space = named(1 << 40, &[100]);
    let raw = space.allocate_raw(100).unwrap();
    let (long, done, start) = (1 << 33, AtomicBool::new(false), Barrier::new(3));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                // At least once, also where the other is done before this begins.
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
            let most = (1 << 40) - raw.offset;
            let refused = RawError::Refused(AllocError::TooLarge {
                requested: (1 << 40) + 1,
                limit: 1 << 40,
            });
            assert_eq!(space.extend_raw(raw.handle, (1 << 40) + 1), Err(refused), "of {most}");
            assert_eq!(space.extend_raw(raw.handle, 100), Ok(()));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(space.free_raw(raw.handle), Ok(100));
}

/// Only what has a raw handle counts, not what is held otherwise or cached.
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
    let other = space.seal_raw(held).unwrap();
    let adopted = space.adopt_raw(b.handle).unwrap();
    assert_eq!((space.raw_extents(), adopted.size()), (1, 100));
    space.free_raw(other.handle).unwrap();
    assert_eq!(space.raw_extents(), 0);
}
