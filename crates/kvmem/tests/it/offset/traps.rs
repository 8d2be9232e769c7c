//! Traps that offset allocators are known to have fallen into, this one's own past included.

use kvmem::offset::{AllocError, OffsetAllocator, Placement};
use kvmem_testkit::driver;
use kvmem_testkit::op::{Amount, Base, Change, Config, Count, Op, Part, Pick};

use kvmem_testkit::random::Random;

use super::space;

const PLACEMENTS: [Placement; 2] = [Placement::Renewal, Placement::BestFit];

/// Returns capacities that are special to some implementation: powers of two, numbers that 32 bits
/// and floats cannot represent, and all small ones.
fn capacities() -> impl Iterator<Item = u64> {
    let special = [699_050, (1 << 40) - 1, 1000 << 30, 15 << 28, 4 << 30, (1 << 63) - 1, 1 << 63];
    let near_powers = (2..63).flat_map(|log2| [(1 << log2) - 1, 1 << log2, (1 << log2) + 1]);
    let uneven = (10..63).flat_map(|log2| [(1u64 << log2) / 3 * 2 + 1, (1 << log2) / 127 * 126]);
    (1..=3000).chain(special).chain(near_powers).chain(uneven)
}

#[test]
fn request_and_range_in_one_bin() {
    let space = OffsetAllocator::new(699_050).unwrap();
    assert_eq!(space.allocate(664_908).map(|granted| granted.len()), Ok(664_908));

    let space = OffsetAllocator::new(324).unwrap();
    let before = space.allocate(255).unwrap();
    let granted = space.allocate(67).expect("69 bytes are free in one piece");
    assert_eq!((granted.len(), space.metrics().free), (67, 2));
    assert!(before.range().end <= granted.offset() || granted.range().end <= before.offset());
}

#[test]
fn every_request_up_to_the_range_fits() {
    for capacity in [1, 2, 63, 64, 65, 127, 128, 129, 324, 1000, 4095, 4097] {
        let space = OffsetAllocator::new(capacity).unwrap();
        for size in 1..=capacity {
            assert_eq!(
                space.allocate(size).map(|granted| granted.len()),
                Ok(size),
                "of {capacity}"
            );
        }
        assert_eq!(
            space.allocate(capacity + 1).map(drop),
            Err(AllocError::TooLarge { requested: capacity + 1, limit: capacity })
        );
    }
}

#[test]
fn the_largest_allocation_is_the_whole_space() {
    for capacity in capacities() {
        let space = OffsetAllocator::new(capacity).unwrap();
        assert_eq!(space.largest_free_hint(), capacity);
        // Twice: a range that was freed is as good as one that was never used.
        for _ in 0..2 {
            let all =
                space.allocate(capacity).unwrap_or_else(|error| panic!("{capacity}: {error}"));
            assert_eq!(all.range(), 0..capacity);
            assert_eq!((space.metrics().free, space.largest_free_hint()), (0, 0));
        }
        // And after the space was divided.
        let pieces = space.allocate_batch(
            capacity.div_ceil(7),
            capacity.div_euclid(capacity.div_ceil(7)) as usize,
        );
        drop(pieces.unwrap());
        assert!(space.allocate(capacity).is_ok(), "{capacity}");
    }
}

/// Every free range can be allocated as one range, behind neighbours of any size in the same bin.
#[test]
fn the_longest_of_many_alike_is_found() {
    for placement in PLACEMENTS {
        // One bin above 2^20 is 16 KiB wide: 40 holes share it. The longest is freed first, so it
        // is last in the list.
        let space = OffsetAllocator::builder(1 << 30).placement(placement).build().unwrap();
        let mut rest = space.allocate(1 << 30).unwrap();
        let (mut holes, mut walls) = (Vec::new(), Vec::new());
        let longest = |i: u64| (1 << 20) + 8000 - 200 * i;
        for i in 0..40 {
            let wall = rest.offset();
            let (left, right) = rest.free_range(wall + 1..wall + 1 + longest(i)).unwrap();
            walls.extend(left);
            rest = right.unwrap();
        }
        for i in 0..40 {
            assert_eq!(space.metrics().largest_free, longest(i));
            assert!(space.allocate(longest(i) + 1).is_err());
            holes.push(space.allocate(longest(i)).expect("it is free"));
        }
        assert_eq!(space.metrics().free, 0);
        drop(holes);
        drop((walls, rest));
        space.check().unwrap();
    }
}

#[test]
fn an_exact_fit_needs_nothing_else() {
    let space = OffsetAllocator::new(1 << 20).unwrap();
    // Every other range of the whole space is free: no two holes coalesce, none is a byte too long.
    let mut all = space.allocate_batch(64, 1 << 14).unwrap();
    all.sort_by_key(|granted| granted.offset());
    let mut at = 0u32;
    let (kept, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(|_| {
        at += 1;
        at.is_multiple_of(2)
    });
    drop(gone);
    assert_eq!((space.metrics().free_ranges, space.metrics().largest_free), (1 << 13, 64));
    let again = space.allocate_batch(64, 1 << 13).unwrap();
    assert_eq!(space.metrics().free, 0);
    assert!(space.allocate(1).is_err());
    drop((kept, again));
    assert_eq!(space.metrics().largest_free, 1 << 20);
}

/// A small-object region lay in the middle of a range, and a batch that filled the range failed.
#[test]
fn a_batch_that_fits_succeeds_beside_small_objects() {
    let config = Config {
        capacity: 1 << 20,
        boundary: None,
        placement: Placement::Renewal,
        max_ranges: None,
        cache: None,
    };
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut ops = Vec::new();
        for _ in 0..60 {
            let pick = random.bits() as Pick;
            let share = random.below(6000) as u16;
            let bulk = Amount { base: Base::Capacity, part: Part { share, off: 0 } };
            let few = Amount { base: Base::Hole(pick), part: Part { share: u16::MAX / 8, off: 0 } };
            ops.push(match random.below(10) {
                0..3 => Op::Allocate { size: bulk, raw: false },
                3..6 => Op::Allocate { size: Amount::bytes(1 + random.below(50)), raw: false },
                6..9 => Op::Held(pick, Change::Free),
                _ => Op::AllocateBatch { size: few, n: Count::AsManyAsFit },
            });
        }
        driver::run(&config, &ops).unwrap_or_else(|failure| panic!("seed {seed}, {failure}"));
    }
}

/// Every segment was opened and all of them searched again and again: a single byte took minutes.
#[test]
fn alignments_that_boundaries_seldom_meet_are_quick() {
    // A boundary that no alignment divides: among a third of a trillion segments, only the first
    // begins aligned.
    let odd = space(1 << 40, Some(3));
    let first = odd.allocate_aligned(3, 1 << 40).unwrap();
    assert_eq!(first.offset(), 0);
    for _ in 0..100 {
        let error = odd.allocate_aligned(3, 1 << 40).unwrap_err();
        assert_eq!(
            error,
            AllocError::OutOfSpace { requested: 3, free: (1 << 40) - 3, largest_free: 3 }
        );
    }
    assert!(odd.metrics().free_ranges < 10, "failed requests leave nothing behind");
    // One in 4096 is aligned, and each is found.
    let even = space(1 << 30, Some(1 << 12));
    let found: Vec<_> = (0..64).map(|_| even.allocate_aligned(1, 1 << 24).unwrap()).collect();
    assert_eq!(found.iter().map(|found| found.offset() >> 24).max(), Some(63));
    assert!(even.allocate_aligned(1, 1 << 24).is_err());
    even.check().unwrap();
    drop((first, found));
    assert_eq!((odd.metrics().free_ranges, even.metrics().free_ranges), (1, 1));
}
