//! Allocations as values: their size, which threads they may move to, and many allocators.

use std::mem::size_of;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, RawAllocation, RawHandle};

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
