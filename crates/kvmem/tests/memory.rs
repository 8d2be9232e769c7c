//! The real cost of the metadata, measured on the process's own heap.
//!
//! In a process of its own, and in one test: concurrent code would be measured with it.

use kvmem::offset::{Allocation, OffsetAllocator, RawHandle};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Runs `make`; returns the heap bytes that it leaves in use, and its result.
fn cost<T>(make: impl FnOnce() -> T) -> (i64, T) {
    let before = HEAP.current_usage() as i64;
    let made = make();
    (HEAP.current_usage() as i64 - before, made)
}

#[test]
fn metadata_bytes_are_accurate_and_freed() {
    // The slot table of the registry, and whatever else is made once.
    drop(OffsetAllocator::new(1).unwrap().allocate(1));

    let (at_start, space) = cost(|| OffsetAllocator::new(1 << 40).unwrap());
    let reported = space.metrics().metadata_bytes as i64;
    assert!(at_start < 64 << 10, "an empty space of 1 TiB costs {at_start} bytes");
    assert!((reported - at_start).abs() < 4096, "it costs {at_start} bytes and says {reported}");

    const LIVE: usize = 100_000;
    let mut live: Vec<Allocation> = Vec::with_capacity(LIVE);
    let (more, ()) =
        cost(|| live.extend((0..LIVE as u64).map(|i| space.allocate(1 + i % 999).unwrap())));
    let grown = space.metrics().metadata_bytes as i64 - reported;
    assert!(
        (grown - more).abs() * 100 < more,
        "{LIVE} allocations cost {more} bytes, the metrics say {grown}"
    );
    drop(live);
    let handles: Vec<RawHandle> =
        (0..LIVE).map(|_| space.allocate_raw(10).unwrap().handle).collect();
    let (less, ()) =
        cost(|| handles.iter().for_each(|handle| assert_eq!(space.free_raw(*handle), Ok(10))));
    let left = space.metrics().metadata_bytes as i64;
    assert!(less < -16 * LIVE as i64, "freeing {LIVE} changed the heap by {less} bytes");
    assert!(left < at_start + (128 << 10), "{left} bytes are left");
    drop(handles);

    // However a space ends, nothing of it remains: it ends with its allocator, or with the last
    // allocation that could be freed.
    type Ending = fn(OffsetAllocator, Allocation, RawHandle);
    let endings: [(&str, Ending); 5] = [
        ("the allocator last", |space, own, raw| {
            drop(own);
            space.free_raw(raw).unwrap();
        }),
        ("an allocation last", |space, own, _raw| {
            drop(space);
            drop(own);
        }),
        ("a part of an allocation last", |space, own, _raw| {
            drop(space);
            let part = own.offset() + 10..own.offset() + 20;
            let (left, right) = own.free_range(part).unwrap();
            drop((left, right));
        }),
        ("all of an allocation as a sub-range last", |space, own, _raw| {
            drop(space);
            let range = own.range();
            assert!(matches!(own.free_range(range), Ok((None, None))));
        }),
        ("an allocation made raw last", |space, own, _raw| {
            drop(space);
            own.into_raw();
        }),
    ];
    for (name, end) in endings {
        let (stays, ()) = cost(|| {
            for _ in 0..200 {
                let space = OffsetAllocator::new(1 << 20).unwrap();
                let own = space.allocate(100).unwrap();
                let raw = space.allocate_raw(100).unwrap().handle;
                end(space, own, raw);
            }
        });
        // The table of free cores may grow a little.
        assert!(stays < 16 << 10, "{name}: {stays} bytes of 200 spaces stay");
    }
}
