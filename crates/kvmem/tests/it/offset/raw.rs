//! Raw handles: plain data that may be copied, kept too long, and invented.

use std::collections::HashSet;

use kvmem::offset::{AllocError, OffsetAllocator, RawError, RawHandle};

use kvmem_testkit::random::Random;

use super::figures;

/// Returns the error of the space for a handle that it does not know.
fn stale(handle: RawHandle) -> RawError {
    let bits = handle.to_bits();
    RawError::Stale { slot: (bits >> 32) as u32, generation: bits as u32 }
}

#[track_caller]
fn assert_all_calls_fail(space: &OffsetAllocator, handle: RawHandle, error: RawError) {
    let before = figures(space.metrics());
    assert_eq!(space.free_raw(handle), Err(error));
    assert_eq!(space.resolve_raw(handle), Err(error));
    assert_eq!(space.shrink_raw(handle, 1), Err(error));
    assert_eq!(space.extend_raw(handle, 1), Err(error));
    assert_eq!(space.adopt_raw(handle).map(drop), Err(error));
    assert_eq!(figures(space.metrics()), before);
    space.check().unwrap();
}

#[test]
fn a_handle_is_good_until_it_is_freed() {
    let space = OffsetAllocator::new(1 << 40).unwrap();
    let a = space.allocate_raw(1000).unwrap();
    let b = space.allocate_aligned_raw(1 << 33, 4096).unwrap();
    assert_eq!((a.size, b.size, b.offset % 4096), (1000, 1 << 33, 0));
    assert_eq!(space.resolve_raw(a.handle), Ok(a.offset..a.offset + 1000));
    assert_eq!(space.resolve_raw(b.handle), Ok(b.offset..b.offset + (1 << 33)));
    assert_eq!(space.shrink_raw(a.handle, 10), Ok(()));
    assert_eq!(space.resolve_raw(a.handle), Ok(a.offset..a.offset + 10));
    assert_eq!(space.extend_raw(a.handle, 500), Ok(()));
    assert_eq!(space.resolve_raw(a.handle), Ok(a.offset..a.offset + 500));
    assert_eq!(space.free_raw(a.handle), Ok(500));
    assert_all_calls_fail(&space, a.handle, stale(a.handle));
    assert_eq!(space.free_raw(b.handle), Ok(1 << 33));
    assert_all_calls_fail(&space, b.handle, stale(b.handle));
    assert_eq!(space.metrics().largest_free, 1 << 40);
}

/// The next allocation of the same size takes the same range, and the old handle is not accepted
/// for it.
#[test]
fn a_handle_does_not_come_back() {
    let space = OffsetAllocator::new(4096).unwrap();
    let mut seen = HashSet::new();
    let mut old = space.allocate_raw(4096).unwrap();
    for _ in 0..10_000 {
        assert!(seen.insert(old.handle.to_bits()));
        assert_eq!(space.free_raw(old.handle), Ok(4096));
        let new = space.allocate_raw(4096).unwrap();
        assert_eq!(new.offset, old.offset);
        assert_eq!(space.free_raw(old.handle), Err(stale(old.handle)));
        old = new;
    }
    assert_all_calls_fail(
        &space,
        RawHandle::from_bits(old.handle.to_bits() ^ 1),
        stale(RawHandle::from_bits(old.handle.to_bits() ^ 1)),
    );
    assert_eq!(space.free_raw(old.handle), Ok(4096));
}

#[test]
fn from_raw_to_raii_and_back() {
    let space = OffsetAllocator::new(10_000).unwrap();
    let first = space.allocate_raw(10_000).unwrap();
    space.shrink_raw(first.handle, 100).unwrap();
    let mut own = space.adopt_raw(first.handle).unwrap();
    assert_all_calls_fail(&space, first.handle, stale(first.handle));
    assert_eq!((own.offset(), own.len()), (first.offset, 100));
    own.extend(200).unwrap();
    let second = own.into_raw();
    assert_ne!(second, first.handle);
    assert_all_calls_fail(&space, first.handle, stale(first.handle));
    assert_eq!(space.resolve_raw(second), Ok(first.offset..first.offset + 200));
    assert_eq!((space.metrics().live, space.free_raw(second)), (1, Ok(200)));
    assert_eq!(space.metrics().live, 0);
}

#[test]
fn handles_of_other_allocators_are_foreign() {
    let (a, b) = (OffsetAllocator::new(1000).unwrap(), OffsetAllocator::new(1000).unwrap());
    let (in_a, in_b) = (a.allocate_raw(10).unwrap().handle, b.allocate_raw(10).unwrap().handle);
    let id = |handle: RawHandle| (handle.to_bits() >> 64) as u64;
    assert_all_calls_fail(&a, in_b, RawError::Foreign { allocator: id(in_a), handle_of: id(in_b) });
    assert_all_calls_fail(&b, in_a, RawError::Foreign { allocator: id(in_b), handle_of: id(in_a) });
    // The successor of a dropped allocator, on the same core or not, is a different allocator.
    drop(b);
    for _ in 0..100 {
        let next = OffsetAllocator::new(1000).unwrap();
        let own = next.allocate_raw(10).unwrap().handle;
        assert_all_calls_fail(
            &next,
            in_b,
            RawError::Foreign { allocator: id(own), handle_of: id(in_b) },
        );
        assert_all_calls_fail(
            &a,
            own,
            RawError::Foreign { allocator: id(in_a), handle_of: id(own) },
        );
    }
    assert_eq!(a.resolve_raw(in_a).map(|range| range.end - range.start), Ok(10));
}

#[test]
fn invented_handles_are_rejected() {
    let space = OffsetAllocator::new(1 << 20).unwrap();
    let good: Vec<RawHandle> =
        (1..=100).map(|size| space.allocate_raw(size).unwrap().handle).collect();
    let known: HashSet<RawHandle> = good.iter().copied().collect();
    let id = good[0].to_bits() >> 64;
    let mut random = Random::new(11);
    for step in 0..20_000 {
        let bits = match step % 4 {
            0 => u128::from(random.bits()) << 64 | u128::from(random.bits()),
            // Of this allocator, with any slot and any generation.
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
    for bits in [0, u128::MAX, id << 64, id << 64 | u128::from(u64::MAX)] {
        assert!(space.free_raw(RawHandle::from_bits(bits)).is_err(), "{bits:#x}");
    }
    // RAII allocations have no handle that could be guessed.
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
fn failed_requests_issue_no_handle() {
    let space = OffsetAllocator::new(100).unwrap();
    let all = space.allocate_raw(100).unwrap();
    assert_eq!(
        space.allocate_raw(1),
        Err(AllocError::OutOfSpace { requested: 1, free: 0, largest_free: 0 })
    );
    assert_eq!(space.free_raw(all.handle), Ok(100));
}

/// The additional metadata of a raw allocation is created and freed with it.
#[test]
fn handles_leave_nothing_behind() {
    let space = OffsetAllocator::new(1 << 30).unwrap();
    let before = space.metrics().metadata_bytes;
    let handles: Vec<RawHandle> =
        (0..50_000).map(|_| space.allocate_raw(100).unwrap().handle).collect();
    let peak = space.metrics().metadata_bytes;
    for handle in handles {
        space.free_raw(handle).unwrap();
    }
    let after = space.metrics().metadata_bytes;
    assert!(
        peak > before + 50_000 * 16 && after < before + 32_768,
        "{before} → {peak} → {after} bytes"
    );
}
