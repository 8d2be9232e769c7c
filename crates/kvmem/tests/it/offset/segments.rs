//! Boundaries that share few factors with alignments, and the cost of a failed request.

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, Placement};

use kvmem_testkit::random::Random;

use super::figures;

const PLACEMENTS: [Placement; 2] = [Placement::Renewal, Placement::BestFit];

/// A bounded space does not spend its nodes on the segments between two that have an aligned start.
#[test]
fn an_aligned_request_takes_few_nodes() {
    for placement in PLACEMENTS {
        let builder =
            OffsetAllocator::builder(1 << 30).boundary(4097).max_ranges(100).placement(placement);
        let space = builder.build().unwrap();
        let first = space.allocate_aligned(4097, 4096).unwrap();
        assert_eq!(first.offset(), 0);
        // The next segment that begins at a multiple of 4096 is the 4096th.
        let second = space.allocate_aligned(4097, 4096).unwrap();
        assert_eq!(second.offset(), 4096 * 4097);
        assert!(space.metrics().free_ranges < 5, "{:?}", space.metrics());
        let small: Vec<_> = (0..50).map(|_| space.allocate(10).unwrap()).collect();
        space.check().unwrap();
        drop((first, second, small));
        let metrics = space.metrics();
        assert_eq!((metrics.free_ranges, metrics.largest_free, metrics.live), (1, 4097, 0));
        space.check().unwrap();
    }
}

/// An aligned start is found among 64 runs, whatever their order, and a run at the end of the space
/// counts extra.
#[test]
fn an_aligned_start_is_found_among_64_runs() {
    for placement in PLACEMENTS {
        for at_end in [false, true] {
            for target in 0..64 {
                let space = OffsetAllocator::builder(3 * 4096).boundary(3).placement(placement);
                let space = space.build().unwrap();
                let mut segments: Vec<Option<Allocation>> =
                    (0..4096).map(|_| Some(space.allocate(3).unwrap())).collect();
                segments.sort_by_key(|segment| segment.as_ref().map(Allocation::offset));
                // Every second segment, so that the runs stay apart; none of them has a multiple of
                // 256 but the target, from 768 on.
                for run in 0..64 {
                    segments[if run == target { 256 } else { 2 * run + 87 }] = None;
                }
                if at_end {
                    segments[4095] = None;
                }
                let found = space.allocate_aligned(1, 256).unwrap();
                assert_eq!(found.offset(), 768, "{placement:?}, {at_end}, {target}");
            }
        }
    }
}

/// Failed requests of every kind change nothing, both in a space without free nodes and in one with
/// some left.
#[test]
fn a_failed_request_takes_no_nodes() {
    for (max_ranges, align) in [(100, 4096), (100, 1 << 20), (40, 4096), (1000, 4096)] {
        let builder = OffsetAllocator::builder(1 << 30).boundary(4097).max_ranges(max_ranges);
        let space = builder.build().unwrap();
        let mut live = Vec::new();
        while let Ok(granted) = space.allocate_aligned(4097, align) {
            live.push(granted);
        }
        let before = (figures(space.metrics()), space.map(), space.metrics().free_ranges);
        for _ in 0..3 {
            assert!(space.allocate_aligned(4097, align).is_err());
            assert!(space.allocate_aligned(4097, 1 << 62).is_err());
            assert!(space.allocate_batch(4097, 1 << 18).is_err());
            assert!(space.allocate_batch(4000, 262_000).is_err());
            assert!(space.allocate_scattered((1 << 30) - 5000, 1 << 20).is_err());
            assert!(space.allocate_scattered(4097 * 3, 2).is_err());
            assert!(space.allocate(4098).is_err());
        }
        let after = (figures(space.metrics()), space.map(), space.metrics().free_ranges);
        assert_eq!(before, after);
        space.check().unwrap();
    }
}

/// A range that is freed whole needs no node, and neither does an exact fit, even of a whole
/// segment.
#[test]
fn whole_ranges_need_no_nodes() {
    for placement in PLACEMENTS {
        let builder =
            OffsetAllocator::builder(40 * 4096).boundary(4096).max_ranges(40).placement(placement);
        let space = builder.build().unwrap();
        let mut live = Vec::new();
        let error = loop {
            match space.allocate(4096) {
                Ok(granted) => live.push(granted),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AllocError::TooManyRanges { .. }), "{error}");
        let freed = live.remove(live.len() / 2);
        let range = freed.range();
        assert!(matches!(freed.free_range(range.clone()), Ok((None, None))));
        space.check().unwrap();
        let again = space.allocate(4096).expect("a segment is free and fits exactly");
        assert_eq!(again.range(), range);
        let range = again.range();
        let (again, error) = again.free_range(range.start + 1..range.end - 1).unwrap_err();
        assert!(matches!(error, AllocError::TooManyRanges { .. }), "{error}");
        live.push(again);
        let freed = live.swap_remove(3);
        let range = freed.range();
        drop(freed);
        assert_eq!(space.allocate_aligned(4096, 4096).unwrap().range(), range);
        space.check().unwrap();
    }
}

/// A boundary slightly above 2^27: the first segment that fits is found by arithmetic.
#[test]
fn segments_with_an_aligned_start_are_found_by_arithmetic() {
    for (boundary, align, size) in [
        ((1u64 << 27) + 1, 1u64 << 27, (1u64 << 27) + 1),
        ((1 << 27) - 1, 1 << 27, (1 << 27) - 1),
        ((1 << 27) + 3, 1 << 40, 1 << 20),
        (4097, 1 << 35, 4000),
        (1_000_003, 1 << 30, 900_000),
    ] {
        let space = OffsetAllocator::builder(1 << 62).boundary(boundary).build().unwrap();
        let live: Vec<_> = (0..20).map(|_| space.allocate_aligned(size, align).unwrap()).collect();
        for granted in &live {
            let (start, end) = (granted.range().start, granted.range().end);
            assert!(start.is_multiple_of(align) && start / boundary == (end - 1) / boundary);
        }
        // Each leaves at most one run before it, and a hole on each side.
        let metrics = space.metrics();
        assert!(metrics.free_ranges <= 3 * 20 + 1, "{metrics:?}");
        space.check().unwrap();
        drop(live);
        let metrics = space.metrics();
        assert_eq!((metrics.free_ranges, metrics.largest_free), (1, boundary));
    }
    // None fits: no multiple of 2^40 below 2^62 is that near the start of a segment.
    let space = OffsetAllocator::builder(1 << 40).boundary((1 << 27) + 1).build().unwrap();
    let first = space.allocate_aligned(1 << 27, 1 << 40).unwrap();
    let before = (figures(space.metrics()), space.metrics().free_ranges);
    assert!(matches!(space.allocate_aligned(1 << 27, 1 << 39), Err(AllocError::OutOfSpace { .. })));
    assert_eq!((figures(space.metrics()), space.metrics().free_ranges), before);
    drop(first);
}

/// Few live ranges leave few free segments in the metadata, whatever was allocated and freed
/// before.
#[test]
fn free_segments_stay_few() {
    let space = OffsetAllocator::builder(1 << 40).boundary((1 << 16) + 1).build().unwrap();
    let mut random = Random::new(9);
    let mut live: Vec<Allocation> = Vec::new();
    for step in 0..20_000 {
        if live.len() < 1000 || random.below(2) == 0 {
            let (size, align) = (1 + random.below(1 << 16), 1 << random.below(20));
            live.extend(space.allocate_aligned(size, align));
        } else {
            drop(live.swap_remove(random.below(live.len() as u64) as usize));
        }
        if step % 500 == 0 {
            let metrics = space.metrics();
            assert!(metrics.free_ranges <= 3 * metrics.live + 2, "{metrics:?}");
            space.check().unwrap();
        }
    }
    drop(live);
    assert_eq!(space.metrics().free_ranges, 1);
}
