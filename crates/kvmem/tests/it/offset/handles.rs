//! Allocations as values: their size, which threads they may move to, and that they outlive their
//! allocator.

use std::mem::size_of;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, RawAllocation, RawHandle};

use super::space;

const fn sent_and_shared<T: Send + Sync>() {}
const fn cloned<T: Clone>() {}

// Checked when this compiles.
const _: () = {
    sent_and_shared::<OffsetAllocator>();
    sent_and_shared::<Allocation>();
    sent_and_shared::<RawHandle>();
    sent_and_shared::<RawAllocation>();
    sent_and_shared::<AllocError>();
    cloned::<OffsetAllocator>();
};

#[test]
fn sizes_in_memory() {
    assert_eq!(size_of::<Allocation>(), 20);
    assert_eq!(size_of::<Option<Allocation>>(), 20);
    assert_eq!(size_of::<RawHandle>(), 16);
    assert_eq!(size_of::<OffsetAllocator>(), 16);
    assert!(size_of::<AllocError>() <= 40, "errors are small");
}

#[test]
fn sizes_of_more_than_32_bits() {
    let space = OffsetAllocator::new(1 << 63).unwrap();
    for size in [
        u64::from(u32::MAX) - 1,
        u64::from(u32::MAX),
        u64::from(u32::MAX) + 1,
        (1 << 33) + 7,
        (1 << 62) + (1 << 31),
        1 << 63,
    ] {
        let mut granted = space.allocate(size).unwrap();
        assert_eq!(
            (granted.len(), granted.range()),
            (size, granted.offset()..granted.offset() + size)
        );
        assert_eq!(space.metrics().allocated, size);
        assert!(format!("{granted:?}").contains(&size.to_string()));
        // Across the limit and back.
        granted.shrink(5).unwrap();
        assert_eq!((granted.len(), space.metrics().allocated), (5, 5));
        granted.extend(size).unwrap();
        assert_eq!((granted.len(), space.metrics().allocated), (size, size));
        drop(granted);
        assert_eq!(space.metrics().largest_free, 1 << 63);
    }
    let (left, right) =
        space.allocate(1 << 63).unwrap().free_range(1 << 40..(1 << 40) + 1).unwrap();
    assert_eq!(left.unwrap().range(), 0..1 << 40);
    assert_eq!(right.unwrap().range(), (1 << 40) + 1..1 << 63);
    assert_eq!(space.metrics().largest_free, 1 << 63);
}

#[test]
fn offsets_of_more_than_32_bits() {
    let space = OffsetAllocator::new((1 << 63) - 5).unwrap();
    let all = space.allocate((1 << 63) - 5).unwrap();
    let (first, last) = all.free_range(1..(1 << 63) - 6).unwrap();
    assert_eq!(last.as_ref().map(Allocation::range), Some((1 << 63) - 6..(1 << 63) - 5));
    let middle = space.allocate_aligned(100, 1 << 62).unwrap();
    assert_eq!(middle.offset(), 1 << 62, "0 is in use");
    drop((first, last, middle));
    assert_eq!(space.metrics().largest_free, (1 << 63) - 5);
}

#[test]
fn allocations_outlive_their_allocator() {
    for boundary in [None, Some(4096)] {
        let space = space(1 << 20, boundary);
        let clone = space.clone();
        let mut live = space.allocate_batch(1000, 100).unwrap();
        let offsets: Vec<u64> = live.iter().map(Allocation::offset).collect();
        drop(space);
        // The clone still is the same space.
        assert_eq!(clone.metrics().live, 100);
        live.push(clone.allocate(1).unwrap());
        drop(clone);
        let last = live.pop().unwrap();
        assert_eq!(live.iter().map(Allocation::offset).collect::<Vec<_>>(), offsets);
        let mut first = live.swap_remove(0);
        assert_eq!(first.shrink(0), Err(AllocError::ZeroSize));
        first.shrink(10).unwrap();
        first.extend(1000).unwrap();
        let middle = first.offset() + 400..first.offset() + 500;
        let (left, right) = first.free_range(middle).unwrap();
        assert_eq!((left.unwrap().len(), right.unwrap().len()), (400, 500));
        drop(live);
        // The very last one; no allocator is left.
        assert_eq!(last.len(), 1);
    }
}

/// More allocators at a time than the registry's first tables hold, twice over; each is a space of
/// its own.
#[test]
fn many_allocators_at_a_time() {
    let mut kept = Vec::new();
    for round in 0..3u64 {
        let spaces: Vec<OffsetAllocator> =
            (0..300).map(|i| OffsetAllocator::new(1000 + i).unwrap()).collect();
        let granted: Vec<Allocation> =
            spaces.iter().zip(0..).map(|(space, i)| space.allocate(500 + i).unwrap()).collect();
        for (i, (space, granted)) in (0..).zip(spaces.iter().zip(&granted)) {
            let metrics = space.metrics();
            assert_eq!((metrics.capacity, metrics.allocated), (1000 + i, 500 + i));
            assert!(
                granted.len() == 500 + i && granted.range().end <= 1000 + i,
                "{granted:?} of {metrics:?}"
            );
        }
        // Half of the allocations outlive their allocators into the next rounds.
        drop(spaces);
        kept.extend(granted.into_iter().zip(0..).filter(|(_, i)| (i + round) % 2 == 0));
    }
    for (granted, i) in &kept {
        assert_eq!(granted.len(), 500 + i);
    }
    drop(kept);
}

#[test]
fn a_run_may_hold_allocations_of_other_spaces() {
    let (a, b) = (OffsetAllocator::new(1000).unwrap(), OffsetAllocator::new(1000).unwrap());
    let orphan = OffsetAllocator::new(10).unwrap().allocate(10).unwrap();
    let mut run = a.allocate_batch(10, 50).unwrap();
    run.extend(b.allocate_batch(10, 50).unwrap());
    run.push(orphan);
    run.rotate_left(30);
    a.free_batch(run);
    for space in [a, b] {
        assert_eq!((space.metrics().live, space.metrics().largest_free), (0, 1000));
        space.check().unwrap();
    }
}

/// An iterator panics half-way: the items that it had returned are freed, and the space is intact.
#[test]
fn a_run_that_panics() {
    let space = OffsetAllocator::new(1000).unwrap();
    let run = space.allocate_batch(10, 10).unwrap();
    let mut left = 5;
    let broken = run.into_iter().inspect(|_| {
        left -= 1;
        assert!(left > 0, "on purpose");
    });
    let result =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| space.free_batch(broken)));
    assert!(result.is_err());
    assert_eq!((space.metrics().live, space.metrics().largest_free), (0, 1000));
    space.check().unwrap();
}
