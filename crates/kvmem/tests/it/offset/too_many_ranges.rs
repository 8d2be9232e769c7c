//! Spaces with a limit on the number of ranges.

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, Placement, SpaceError};

const CAPACITY: u64 = 1 << 20;
const RANGES: u32 = 64;

/// Returns a space at its limit of ranges, and its allocations: ranges of 100 bytes, every other
/// one free, and a long free range behind them.
fn full(placement: Placement) -> (OffsetAllocator, Vec<Allocation>) {
    let space =
        OffsetAllocator::builder(CAPACITY).placement(placement).max_ranges(RANGES).build().unwrap();
    let mut live = Vec::new();
    let error = loop {
        match space.allocate(100) {
            Ok(granted) => live.push(granted),
            Err(error) => break error,
        }
    };
    let AllocError::TooManyRanges { ranges } = error else { panic!("{error}") };
    assert!(ranges <= u64::from(RANGES) && ranges + 4 > u64::from(RANGES), "{ranges} ranges");
    space.check().unwrap();
    // Every other one is freed; the number of ranges stays the same.
    let mut n = 0;
    live.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    space.check().unwrap();
    (space, live)
}

fn both(test: impl Fn(OffsetAllocator, Vec<Allocation>)) {
    for placement in [Placement::Renewal, Placement::BestFit] {
        let (space, live) = full(placement);
        test(space.clone(), live);
        space.check().unwrap();
        let metrics = space.metrics();
        assert_eq!((metrics.live, metrics.largest_free), (0, CAPACITY));
        assert_eq!(space.allocate(CAPACITY).unwrap().len(), CAPACITY);
    }
}

#[test]
fn the_hint_does_not_fall_below_the_truth() {
    both(|space, _live| {
        let longest = space.metrics().largest_free;
        assert!(longest > CAPACITY / 2);
        assert!(space.largest_free_hint() >= longest);
        // The whole of it is an exact fit, which the hint must admit.
        let all = space.allocate(longest).unwrap();
        assert_eq!(all.len(), longest);
        assert!(space.allocate(CAPACITY / 2).is_err());
        drop(all);
        assert!(space.largest_free_hint() >= longest);
    });
}

#[test]
fn an_exact_fit_needs_no_spare_node() {
    both(|space, mut live| {
        let exact: Vec<_> =
            (0..20).map(|_| space.allocate(100).expect("a hole of 100 bytes")).collect();
        assert!(matches!(space.allocate(99), Err(AllocError::TooManyRanges { .. })));
        space.check().unwrap();
        live.extend(exact);
        let aligned = space.allocate_aligned(100, 4).expect("the holes begin at multiples of 200");
        assert_eq!(aligned.offset() % 4, 0);
        assert!(matches!(space.allocate_aligned(99, 4), Err(AllocError::TooManyRanges { .. })));
        let parts = space.allocate_scattered(200, 2);
        assert!(
            matches!(parts, Err(AllocError::TooManyRanges { .. })),
            "the longest hole would be cut"
        );
        let longest = space.metrics().largest_free;
        let parts = space.allocate_scattered(longest + 100, 2).expect("two whole holes");
        assert_eq!(parts.iter().map(Allocation::len).collect::<Vec<_>>(), [longest, 100]);
    });
}

#[test]
fn a_change_without_nodes_changes_nothing() {
    both(|space, mut live| {
        let before = space.map();
        let last = live.last_mut().unwrap();
        assert!(matches!(last.shrink(50), Err(AllocError::TooManyRanges { .. })));
        let range = last.range();
        let whole = live.pop().unwrap();
        let (whole, error) = whole.free_range(range.start + 10..range.end - 10).unwrap_err();
        assert!(matches!(error, AllocError::TooManyRanges { .. }));
        assert_eq!(space.map(), before);
        assert!(matches!(space.allocate_batch(90, 3), Err(AllocError::TooManyRanges { .. })));
        assert_eq!(space.map(), before);
        assert!(matches!(space.grow_to(CAPACITY * 2), Err(SpaceError::TooManyRanges { .. })));
        assert_eq!(space.map(), before);
        // Freeing makes room for changes again.
        drop(live);
        let (left, right) = whole.free_range(range.start + 10..range.end - 10).unwrap();
        assert_eq!((left.unwrap().len(), right.unwrap().len()), (10, 10));
    });
}

#[test]
fn more_ranges_than_nodes_fail_at_once() {
    let space = OffsetAllocator::new(1 << 40).unwrap();
    let error = space.allocate_batch(1, 1 << 40).unwrap_err();
    assert!(matches!(error, AllocError::TooManyRanges { .. }), "{error}");
    assert_eq!(space.metrics().live, 0);
    let few = OffsetAllocator::builder(1 << 40).max_ranges(100).build().unwrap();
    assert!(matches!(few.allocate_batch(1, 101), Err(AllocError::TooManyRanges { .. })));
    assert_eq!(few.allocate_batch(1, 90).unwrap().len(), 90);
}

#[test]
fn metadata_stays_within_the_bound() {
    let space = OffsetAllocator::builder(1 << 30).max_ranges(10_000).build().unwrap();
    let mut live = Vec::new();
    while let Ok(granted) = space.allocate(1 + live.len() as u64 % 1000) {
        live.push(granted);
    }
    let mut n = 0;
    live.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    let metrics = space.metrics();
    assert!(metrics.metadata_bytes < (64 << 10) + 50 * 10_000, "{metrics:?}");
}

#[test]
fn a_space_for_no_ranges_is_an_error() {
    let error = OffsetAllocator::builder(1 << 20).max_ranges(3).build().unwrap_err();
    assert_eq!(error, SpaceError::MaxRanges { requested: 3, min: 16 });
    assert!(error.to_string().contains("at least 16"));
    // The lowest allowed limit is enough for some use.
    let space = OffsetAllocator::builder(1 << 20).max_ranges(16).build().unwrap();
    assert!((0..12).all(|_| space.allocate(10).map(Allocation::into_raw).is_ok()));
}

/// A batch and a scattered request that run out of nodes half way report that, although they have
/// freed their ranges by then.
#[test]
fn the_error_survives_the_rollback() {
    for placement in [Placement::Renewal, Placement::BestFit] {
        let space =
            OffsetAllocator::builder(1 << 16).placement(placement).max_ranges(66).build().unwrap();
        let error = space.allocate_batch(1023, 64).unwrap_err();
        assert!(matches!(error, AllocError::TooManyRanges { .. }), "{error}");
        assert_eq!((space.metrics().live, space.metrics().largest_free), (0, 1 << 16));
        space.check().unwrap();
    }
    both(|space, _live| {
        let longest = space.metrics().largest_free;
        let error = space.allocate_scattered(longest + 150, 3).unwrap_err();
        assert!(matches!(error, AllocError::TooManyRanges { .. }), "{error}");
        assert_eq!(space.metrics().largest_free, longest);
    });
}
