//! A space into which nothing has been freed allocates its ranges one after the other, from the low
//! end up.

use std::ops::Range;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, Placement};

use kvmem_testkit::random::Random;

const PLACEMENTS: [Placement; 2] = [Placement::Renewal, Placement::BestFit];

fn space(capacity: u64, placement: Placement) -> OffsetAllocator {
    OffsetAllocator::builder(capacity).placement(placement).build().unwrap()
}

/// Returns a size of one of four kinds: tiny, small, pages, large.
fn mixed(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 1 + random.below(64),
        1 => 1 + random.below(4096),
        2 => 4096 * (1 + random.below(16)),
        _ => 1 + random.below(2 << 20),
    }
}

/// Allocates until `n` ranges follow each other from `at` on.
fn fill_in_order(
    space: &OffsetAllocator,
    random: &mut Random,
    mut at: u64,
    n: u32,
) -> Vec<Allocation> {
    (0..n)
        .map(|i| {
            let granted = space.allocate(mixed(random)).unwrap();
            assert_eq!(granted.offset(), at, "range {i} of {} bytes", granted.len());
            at += granted.len();
            granted
        })
        .collect()
}

#[test]
fn mixed_sizes_are_adjacent() {
    for (seed, placement) in (0..10).flat_map(|seed| PLACEMENTS.map(|placement| (seed, placement)))
    {
        let space = space(8 << 30, placement);
        let mut random = Random::new(seed);
        let _live = fill_in_order(&space, &mut random, 0, 5000);
        space.check().unwrap();
    }
    // A handful of large ones, for which slots exist, with small ones between; and one size, which
    // leaves no choice.
    for sizes in [vec![500 << 20, 510 << 20, 4096, 520 << 20, 60, 505 << 20], vec![600 << 20; 13]] {
        for placement in PLACEMENTS {
            let space = space(8 << 30, placement);
            let mut at = 0;
            let all: Vec<_> = sizes.iter().map(|&size| space.allocate(size).unwrap()).collect();
            for granted in &all {
                assert_eq!(granted.offset(), at);
                at += granted.len();
            }
        }
    }
}

/// A store that restarts: the sizes of its objects, in the order of their offsets and with fillers
/// between them, get their old offsets.
#[test]
fn objects_are_restored_at_their_offsets() {
    for (seed, placement) in (0..20).flat_map(|seed| PLACEMENTS.map(|placement| (seed, placement)))
    {
        let mut random = Random::new(seed);
        let store = space(64 << 20, placement);
        let mut objects: Vec<Allocation> = Vec::new();
        for _ in 0..2000 {
            match store.allocate(mixed(&mut random)) {
                Ok(granted) => objects.push(granted),
                Err(_) => drop(objects.swap_remove(random.below(objects.len() as u64) as usize)),
            }
        }
        let mut ranges: Vec<Range<u64>> = objects.iter().map(Allocation::range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let restored = space(64 << 20, placement);
        let (mut at, mut fillers, mut back) = (0, Vec::new(), Vec::new());
        for range in ranges {
            if at < range.start {
                fillers.push(restored.allocate(range.start - at).unwrap());
            }
            let object = restored.allocate(range.end - range.start).unwrap();
            assert_eq!(object.range(), range, "seed {seed}, {placement:?}");
            at = range.end;
            back.push(object);
        }
        drop(fillers);
        assert_eq!(restored.metrics().allocated, store.metrics().allocated);
        restored.check().unwrap();
    }
}

#[test]
fn a_batch_continues_the_order_and_a_failed_one_does_not_end_it() {
    for placement in PLACEMENTS {
        let space = space(1 << 20, placement);
        let mut random = Random::new(7);
        let mut live = fill_in_order(&space, &mut random, 0, 1);
        let mut at = live[0].len();
        for size in [10, 1000, 77, 4096] {
            let left = (1 << 20) - at;
            let error = space.allocate_batch(size, (left / size) as usize + 1).unwrap_err();
            assert!(matches!(error, AllocError::OutOfSpace { .. }), "{error}");
            let error = space.allocate_scattered(left + 1, 8).unwrap_err();
            assert!(matches!(error, AllocError::OutOfSpace { .. }), "{error}");
            for granted in space.allocate_batch(size, 9).unwrap() {
                assert_eq!(granted.offset(), at);
                at += size;
                live.push(granted);
            }
            let parts = space.allocate_scattered(size + 1, 8).unwrap();
            assert_eq!((parts.len(), parts[0].offset()), (1, at));
            at += size + 1;
            live.extend(parts);
        }
        space.check().unwrap();
    }
}

/// With a boundary the order continues in the next segment once a segment is filled.
#[test]
fn filled_segments_follow_each_other() {
    for (boundary, placement) in [1000, 4096, 65_536]
        .into_iter()
        .flat_map(|boundary| PLACEMENTS.map(|placement| (boundary, placement)))
    {
        let builder =
            OffsetAllocator::builder(64 * boundary).boundary(boundary).placement(placement);
        let space = builder.build().unwrap();
        let mut random = Random::new(boundary);
        let (mut at, mut live) = (0, Vec::new());
        while at < 64 * boundary {
            let left = boundary - at % boundary;
            let granted = space.allocate((1 + random.below(boundary / 3)).min(left)).unwrap();
            assert_eq!(granted.offset(), at);
            at += granted.len();
            live.push(granted);
        }
        space.check().unwrap();
    }
}

/// Aligned requests whose sizes are multiples of the alignment leave no gaps; a gap is not lost
/// either.
#[test]
fn aligned_requests_keep_the_order_where_they_leave_no_gap() {
    for placement in PLACEMENTS {
        let space = space(1 << 24, placement);
        let mut at = 0;
        let mut live: Vec<_> = (1..100u64)
            .map(|i| {
                let granted = space.allocate_aligned(i % 7 * 4096 + 4096, 4096).unwrap();
                assert_eq!(granted.offset(), at);
                at += granted.len();
                granted
            })
            .collect();
        live.push(space.allocate(1).unwrap());
        live.push(space.allocate_aligned(4096, 4096).unwrap());
        assert_eq!(live.last().unwrap().offset(), at + 4096);
        live.push(space.allocate(4095).unwrap());
        assert_eq!(live.last().unwrap().offset(), at + 1, "the gap is an exact fit");
        live.push(space.allocate(100).unwrap());
        assert_eq!(live.last().unwrap().offset(), at + 8192, "the order continues without a gap");
    }
}
