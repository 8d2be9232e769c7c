//! Bad input: the errors that the sequences against the oracle cannot meet, and what errors say.

use kvmem::offset::{AllocError, OffsetAllocator, SpaceError};

use super::figures;

#[test]
fn spaces() {
    let limit = 1 << 63;
    for requested in [0, limit + 1, u64::MAX] {
        let error = SpaceError::Capacity { requested, limit };
        assert_eq!(OffsetAllocator::new(requested).unwrap_err(), error);
    }
    let boundary = OffsetAllocator::builder(1000).boundary(0).build();
    assert_eq!(boundary.unwrap_err(), SpaceError::ZeroBoundary);
}

/// More ranges than the oracle counts.
#[test]
fn numbers_of_ranges() {
    let space = OffsetAllocator::new(1000).unwrap();
    let (_low, before) = (space.allocate(600), figures(space.metrics()));
    for (requested, n) in [(1, 401), (1, usize::MAX), (7, usize::MAX), (200, 3)] {
        let all = u64::saturating_mul(requested, n as u64);
        let error = AllocError::OutOfSpace { requested: all, free: 400, largest_free: 400 };
        assert_eq!(space.allocate_batch(requested, n).unwrap_err(), error);
    }
    let error = AllocError::OutOfSpace { requested: 401, free: 400, largest_free: 400 };
    assert_eq!(space.allocate_scattered(401, usize::MAX).unwrap_err(), error);
    assert_eq!(figures(space.metrics()), before);
    let free = 1 << 63;
    let huge = OffsetAllocator::new(free).unwrap();
    let error = AllocError::OutOfSpace { requested: u64::MAX, free, largest_free: free };
    assert_eq!(huge.allocate_batch(2, usize::MAX).unwrap_err(), error);
}

#[test]
fn errors_name_the_request_the_limit_and_the_remedy() {
    // [0, 200) and [500, 900) are in use.
    let space = OffsetAllocator::new(1000).unwrap();
    let (low, high) = space.allocate(1000).unwrap().free_range(200..500).unwrap();
    let (mut low, (_high, _)) = (low.unwrap(), high.unwrap().free_range(900..1000).unwrap());
    let said = |error: &dyn std::error::Error, parts: &[&str]| {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "“{text}” does not say “{part}”");
        }
    };
    said(&space.allocate(0).unwrap_err(), &["0", "at least 1"]);
    said(&space.allocate(2000).unwrap_err(), &["2000", "1000", "grow"]);
    let parts = ["350", "400", "300", "free something", "several ranges"];
    said(&space.allocate(350).unwrap_err(), &parts);
    said(&space.allocate_aligned(1, 48).unwrap_err(), &["48", "power of two"]);
    said(&space.allocate_scattered(77, 0).unwrap_err(), &["77", "at least 1"]);
    said(&low.extend(600).unwrap_err(), &["600", "500", "allocate a new range"]);
    said(&low.shrink(500).unwrap_err(), &["[0, 500)", "[0, 200)"]);
    said(&OffsetAllocator::new(0).unwrap_err(), &["0", "9223372036854775808"]);
    let boundary = OffsetAllocator::builder(1).boundary(0).build();
    said(&boundary.unwrap_err(), &["boundary 0", "at least 1"]);
    said(&space.grow_to(10).unwrap_err(), &["10", "1000"]);
    said(&space.shrink_to(10).unwrap_err(), &["10", "900", "free or move"]);
    let handle = low.into_raw();
    space.free_raw(handle).unwrap();
    said(&space.free_raw(handle).unwrap_err(), &["slot", "generation", "freed before"]);
    let other = OffsetAllocator::new(1).unwrap();
    let (id, own) = (handle.to_bits() >> 64, other.allocate_raw(1).unwrap().handle.to_bits() >> 64);
    said(&other.free_raw(handle).unwrap_err(), &[&id.to_string(), &own.to_string()]);
}
