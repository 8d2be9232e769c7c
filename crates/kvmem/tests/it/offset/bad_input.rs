//! Every kind of bad input: exactly the error that tells what is wrong, and an unchanged space.

use std::fmt::Debug;
use std::ops::Range;

use kvmem::offset::{AllocError, Allocation, MapRange, OffsetAllocator, RawError, SpaceError};

use super::{figures, space};

const CAPACITY_MAX: u64 = 1 << 63;

/// Returns a space of 1000 bytes in which [100, 300) and [500, 900) are in use, and those two
/// allocations.
fn used_space() -> (OffsetAllocator, Allocation, Allocation) {
    let space = OffsetAllocator::new(1000).unwrap();
    let all = space.allocate(1000).unwrap();
    let (low, high) = all.free_range(300..500).unwrap();
    let (none, low) = low.unwrap().free_range(0..100).unwrap();
    let (high, end) = high.unwrap().free_range(900..1000).unwrap();
    assert!(none.is_none() && end.is_none());
    let (low, high) = (low.unwrap(), high.unwrap());
    assert_eq!((low.range(), high.range()), (100..300, 500..900));
    (space, low, high)
}

fn map(space: &OffsetAllocator) -> Vec<(u64, u64, bool)> {
    space.map().iter().map(|&MapRange { offset, size, used, .. }| (offset, size, used)).collect()
}

/// Asserts that `call` fails with `error` and changes nothing.
#[track_caller]
fn fails<T: Debug, E: Debug + PartialEq>(
    space: &OffsetAllocator,
    call: impl FnOnce(&OffsetAllocator) -> Result<T, E>,
    error: E,
) {
    let before = (figures(space.metrics()), map(space), space.largest_free_hint());
    assert_eq!(call(space).expect_err("a failure"), error);
    assert_eq!((figures(space.metrics()), map(space), space.largest_free_hint()), before);
    space.check().unwrap();
}

#[test]
fn spaces() {
    for requested in [0, CAPACITY_MAX + 1, u64::MAX] {
        let error = SpaceError::Capacity { requested, limit: CAPACITY_MAX };
        assert_eq!(OffsetAllocator::new(requested).unwrap_err(), error);
        let (space, _low, _high) = used_space();
        fails(&space, |space| space.grow_to(requested), error);
        fails(&space, |space| space.shrink_to(requested), error);
    }
    let boundary = OffsetAllocator::builder(1000).boundary(0).build();
    assert_eq!(boundary.unwrap_err(), SpaceError::ZeroBoundary);
}

#[test]
fn sizes() {
    let (space, _low, _high) = used_space();
    let (free, largest_free) = (400, 200);
    fails(&space, |space| space.allocate(0), AllocError::ZeroSize);
    fails(&space, |space| space.allocate_raw(0), AllocError::ZeroSize);
    fails(&space, |space| space.allocate_aligned(0, 8), AllocError::ZeroSize);
    fails(&space, |space| space.allocate_aligned_raw(0, 8), AllocError::ZeroSize);
    fails(&space, |space| space.allocate_batch(0, 3), AllocError::ZeroSize);
    fails(&space, |space| space.allocate_scattered(0, 3), AllocError::ZeroSize);
    for requested in [1001, u64::from(u32::MAX), CAPACITY_MAX, u64::MAX - 1, u64::MAX] {
        let error = AllocError::TooLarge { requested, limit: 1000 };
        fails(&space, |space| space.allocate(requested), error);
        fails(&space, |space| space.allocate_raw(requested), error);
        fails(&space, |space| space.allocate_aligned(requested, 1 << 63), error);
        fails(&space, |space| space.allocate_aligned_raw(requested, 1), error);
        fails(&space, |space| space.allocate_batch(requested, 2), error);
        fails(&space, |space| space.allocate_scattered(requested, usize::MAX), error);
    }
    for requested in [201, 400, 401, 1000] {
        let error = AllocError::OutOfSpace { requested, free, largest_free };
        fails(&space, |space| space.allocate(requested), error);
        fails(&space, |space| space.allocate_raw(requested), error);
        fails(&space, |space| space.allocate_aligned(requested, 2), error);
        fails(&space, |space| space.allocate_batch(requested, 1), error);
        fails(&space, |space| space.allocate_scattered(requested, 1), error);
    }
}

#[test]
fn sizes_above_the_boundary() {
    let space = space(1000, Some(300));
    for requested in [301, 1000, 1001, u64::MAX] {
        fails(
            &space,
            |space| space.allocate(requested),
            AllocError::TooLarge { requested, limit: 300 },
        );
        fails(
            &space,
            |space| space.allocate_aligned(requested, 4),
            AllocError::TooLarge { requested, limit: 300 },
        );
        fails(
            &space,
            |space| space.allocate_batch(requested, 4),
            AllocError::TooLarge { requested, limit: 300 },
        );
    }
    // Several ranges may be longer together, up to the capacity.
    let scattered = space.allocate_scattered(1000, 4).unwrap();
    let mut sizes: Vec<u64> = scattered.iter().map(Allocation::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [100, 300, 300, 300]);
    drop(scattered);
    let error = AllocError::OutOfSpace { requested: 1000, free: 1000, largest_free: 300 };
    fails(&space, |space| space.allocate_scattered(1000, 3), error);
    let error = AllocError::TooLarge { requested: 1001, limit: 1000 };
    fails(&space, |space| space.allocate_scattered(1001, 100), error);
}

#[test]
fn alignments() {
    let (space, _low, _high) = used_space();
    for align in [0, 3, 6, 1000, CAPACITY_MAX + 1, u64::MAX] {
        fails(&space, |space| space.allocate_aligned(10, align), AllocError::BadAlign { align });
        fails(
            &space,
            |space| space.allocate_aligned_raw(10, align),
            AllocError::BadAlign { align },
        );
    }
    // Valid ones at which nothing free begins.
    for align in [1 << 10, CAPACITY_MAX] {
        let first = space.allocate_aligned(1, align).unwrap();
        assert_eq!(first.offset(), 0);
        let error = AllocError::OutOfSpace { requested: 1, free: 399, largest_free: 200 };
        fails(&space, |space| space.allocate_aligned(1, align), error);
        drop(first);
    }
}

#[test]
fn batches() {
    let (space, _low, _high) = used_space();
    let before = figures(space.metrics());
    assert_eq!(space.allocate_batch(10, 0).unwrap().len(), 0);
    assert_eq!(figures(space.metrics()), before);
    // 100, 200 and 100 bytes are free: eight times 50 fit, three times 99.
    for (requested, n) in
        [(50, 9), (99, 5), (101, 2), (1, 401), (1, usize::MAX), (7, usize::MAX), (200, 2)]
    {
        let all = u64::saturating_mul(requested, n as u64);
        let error = AllocError::OutOfSpace { requested: all, free: 400, largest_free: 200 };
        fails(&space, |space| space.allocate_batch(requested, n), error);
    }
    assert_eq!(space.allocate_batch(50, 8).unwrap().len(), 8);
    assert_eq!(space.allocate_batch(99, 4).unwrap().len(), 4);
    let huge = OffsetAllocator::new(CAPACITY_MAX).unwrap();
    let error = AllocError::OutOfSpace {
        requested: u64::MAX,
        free: CAPACITY_MAX,
        largest_free: CAPACITY_MAX,
    };
    fails(&huge, |huge| huge.allocate_batch(2, usize::MAX), error);
}

#[test]
fn scattered_requests() {
    let (space, _low, _high) = used_space();
    fails(&space, |space| space.allocate_scattered(10, 0), AllocError::NoRanges { requested: 10 });
    for (requested, max_ranges) in [(201, 1), (301, 2), (401, 3), (401, usize::MAX)] {
        let error = AllocError::OutOfSpace { requested, free: 400, largest_free: 200 };
        fails(&space, |space| space.allocate_scattered(requested, max_ranges), error);
    }
    for (total, ranges) in [(200, 1), (300, 2), (400, 3)] {
        assert_eq!(space.allocate_scattered(total, ranges).unwrap().len(), ranges);
    }
}

#[test]
fn shrinking_and_extending() {
    let (space, mut low, _high) = used_space();
    let out_of_bounds = |size| AllocError::OutOfBounds {
        start: 100,
        end: 100u64.saturating_add(size),
        allocation_start: 100,
        allocation_end: 300,
    };
    let mut cases: Vec<(u64, bool, AllocError)> = vec![(0, true, AllocError::ZeroSize)];
    cases.extend([201, 1000, u64::MAX].map(|size| (size, true, out_of_bounds(size))));
    cases.extend([0, 1, 199].map(|size| (size, false, out_of_bounds(size))));
    cases.extend(
        [401, 1000]
            .map(|requested| (requested, false, AllocError::CannotExtend { requested, max: 400 })),
    );
    cases.extend(
        [1001, u64::MAX]
            .map(|requested| (requested, false, AllocError::TooLarge { requested, limit: 1000 })),
    );
    for (size, shrink, error) in &cases {
        let change = |allocation: &mut Allocation| {
            if *shrink { allocation.shrink(*size) } else { allocation.extend(*size) }
        };
        fails(&space, |_| change(&mut low), *error);
        assert_eq!(low.range(), 100..300);
    }
    let handle = low.into_raw();
    for (size, shrink, error) in cases {
        let change = |space: &OffsetAllocator| {
            if shrink { space.shrink_raw(handle, size) } else { space.extend_raw(handle, size) }
        };
        fails(&space, change, RawError::Failed(error));
        assert_eq!(space.resolve_raw(handle), Ok(100..300));
    }
    // The same size is neither.
    assert_eq!((space.shrink_raw(handle, 200), space.extend_raw(handle, 200)), (Ok(()), Ok(())));
}

#[test]
fn extending_up_to_a_boundary_and_no_further() {
    let space = space(1000, Some(300));
    let mut granted = space.allocate(300).unwrap();
    let start = granted.offset();
    granted.shrink(100).unwrap();
    fails(&space, |_| granted.extend(301), AllocError::TooLarge { requested: 301, limit: 300 });
    granted.extend(300).unwrap();
    granted.shrink(250).unwrap();
    let (_, right) = granted.free_range(start..start + 100).unwrap();
    let mut right = right.unwrap();
    fails(&space, |_| right.extend(201), AllocError::CannotExtend { requested: 201, max: 200 });
    right.extend(200).unwrap();
    assert_eq!(right.range(), start + 100..start + 300);
}

#[test]
#[allow(clippy::reversed_empty_ranges)]
fn sub_ranges() {
    let (space, low, _high) = used_space();
    let mut low = Some(low);
    let outside: [Range<u64>; 9] =
        [150..150, 200..150, 100..100, 300..300, 99..200, 200..301, 0..1000, 400..450, u64::MAX..0];
    for sub in outside {
        let error = AllocError::OutOfBounds {
            start: sub.start,
            end: sub.end,
            allocation_start: 100,
            allocation_end: 300,
        };
        let free = |_: &OffsetAllocator| {
            low.take().unwrap().free_range(sub.clone()).map_err(|(allocation, error)| {
                low = Some(allocation);
                error
            })
        };
        fails(&space, free, error);
        assert_eq!(low.as_ref().map(Allocation::range), Some(100..300));
    }
    let (left, right) = low.unwrap().free_range(100..300).unwrap();
    assert!(left.is_none() && right.is_none());
    assert_eq!(map(&space), [(0, 500, false), (500, 400, true), (900, 100, false)]);
}

#[test]
fn moving_the_end() {
    let (space, _low, _high) = used_space();
    for requested in [1, 899, 999] {
        fails(
            &space,
            |space| space.grow_to(requested),
            SpaceError::WrongDirection { capacity: 1000, requested },
        );
    }
    for requested in [1001, CAPACITY_MAX] {
        fails(
            &space,
            |space| space.shrink_to(requested),
            SpaceError::WrongDirection { capacity: 1000, requested },
        );
    }
    for requested in [1, 500, 899] {
        fails(
            &space,
            |space| space.shrink_to(requested),
            SpaceError::InUse { requested, end_of_last: 900 },
        );
    }
    space.grow_to(1000).unwrap();
    space.shrink_to(1000).unwrap();
    space.shrink_to(900).unwrap();
    assert_eq!((space.capacity(), space.metrics().free), (900, 300));
    fails(&space, |space| space.allocate(901), AllocError::TooLarge { requested: 901, limit: 900 });
    space.grow_to(CAPACITY_MAX).unwrap();
    assert_eq!(space.metrics().largest_free, CAPACITY_MAX - 900);
    space.check().unwrap();
}

#[test]
fn errors_tell_the_request_the_limit_and_the_remedy() {
    let (space, mut low, _high) = used_space();
    let said = |error: &dyn std::error::Error, parts: &[&str]| {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "“{text}” does not say “{part}”");
        }
    };
    said(&space.allocate(0).unwrap_err(), &["0", "at least 1"]);
    said(&space.allocate(2000).unwrap_err(), &["2000", "1000", "grow"]);
    said(
        &space.allocate(300).unwrap_err(),
        &["300", "400", "200", "free something", "several ranges"],
    );
    said(&space.allocate_aligned(1, 48).unwrap_err(), &["48", "power of two"]);
    said(&space.allocate_scattered(77, 0).unwrap_err(), &["77", "at least 1"]);
    said(&low.extend(500).unwrap_err(), &["500", "400", "allocate a new range"]);
    said(&low.shrink(500).unwrap_err(), &["100", "600", "300"]);
    said(&OffsetAllocator::new(0).unwrap_err(), &["0", "9223372036854775808"]);
    said(
        &OffsetAllocator::builder(1).boundary(0).build().unwrap_err(),
        &["boundary 0", "at least 1"],
    );
    said(&space.grow_to(10).unwrap_err(), &["10", "1000"]);
    said(&space.shrink_to(10).unwrap_err(), &["10", "900", "free or move"]);
    let handle = low.into_raw();
    space.free_raw(handle).unwrap();
    said(&space.free_raw(handle).unwrap_err(), &["slot", "generation", "freed before"]);
    let other = OffsetAllocator::new(1).unwrap();
    let (id, own) = (handle.to_bits() >> 64, other.allocate_raw(1).unwrap().handle.to_bits() >> 64);
    said(&other.free_raw(handle).unwrap_err(), &[&id.to_string(), &own.to_string()]);
}
