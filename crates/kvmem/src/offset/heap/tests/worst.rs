//! The longest calls: the number of records that one call reads and copies, in its worst
//! situations, is bounded.
//!
//! The tests count [steps](super::steps), not time. The bounds are those of the complexity table in
//! `docs/offset.md`.

use super::super::heap::Heap;
use super::super::ranges::Placed;
use crate::offset::placement::Placement;
use crate::offset::steps;

/// Number of holes, and of ranges between them.
const HOLES: u64 = 1 << 17;
/// Steps of a call, whatever the number of ranges. A list of 192 holes is read at most twice,
/// splits are nested ten deep, and a search for a small-object region reads 256 ranges.
const BOUND: usize = 1000;
/// Steps of an aligned request: 384 holes, each read some three times.
const ALIGNED_BOUND: usize = 6 * 384;

/// A word per chunk of slots, when a vector of chunks grows or shrinks: one each of the tables
/// of ranges, holes and splits.
fn growth(heap: &Heap) -> usize {
    let slots = heap.ranges() as usize * 2;
    BOUND + 3 * (slots / 64 + 64)
}

/// Returns a space of holes of these sizes, separated by ranges of `gap` bytes.
fn holes(sizes: impl Iterator<Item = u64> + Clone, gap: u64, placement: Placement) -> Heap {
    let capacity = sizes.clone().map(|size| size + gap).sum();
    let mut heap = Heap::new(0..capacity, None, placement, u32::MAX);
    let mut placed_ranges: Vec<(Placed, u64)> = Vec::new();
    let mut longest = 0;
    let mut count = |heap: &Heap, steps| {
        assert!(steps <= growth(heap), "{steps} steps at {} ranges", heap.ranges());
        longest = longest.max(steps);
    };
    for size in sizes {
        let (steps, placed) = steps::of(|| heap.allocate(size).unwrap());
        count(&heap, steps);
        placed_ranges.push((placed, size));
        let (steps, placed) = steps::of(|| heap.allocate(gap).unwrap());
        count(&heap, steps);
        debug_assert!(placed.offset > 0);
    }
    for (placed, size) in placed_ranges {
        let (steps, ()) = steps::of(|| heap.free(placed.node, placed.offset, size));
        count(&heap, steps);
        // The bound that a lock's holder publishes is read after each call.
        let (steps, _) = steps::of(|| heap.largest_coalesced());
        assert!(steps <= BOUND, "{steps} steps to the longest hole");
    }
    heap.coalesce();
    assert_eq!(heap.ranges.bins().live() as u64, heap.live());
    heap
}

/// Returns sizes of one bin, all different as far as its width allows, in no order.
fn one_bin() -> impl Iterator<Item = u64> + Clone {
    (0..HOLES).map(|i| (1 << 36) + i * 48_271 % HOLES * 1000)
}

#[test]
fn a_request_behind_holes_that_are_too_short() {
    for placement in [Placement::Renewal, Placement::BestFit] {
        let mut heap = holes(one_bin(), 1, placement);
        let longest = (1 << 36) + (HOLES - 1) * 1000;
        for size in [longest, longest - 1000, longest - 500_000, longest - 5_000_001, 1 << 36, 1] {
            let (steps, result) = steps::of(|| heap.allocate(size));
            assert!(result.is_some() && steps <= BOUND, "{size}: {steps} steps");
            let (steps, failed) = steps::of(|| heap.allocate(longest + 1));
            assert!(failed.is_none() && steps <= BOUND, "{steps} steps");
        }
        heap.check().unwrap();
    }
}

#[test]
fn the_longest_of_all_again_and_again() {
    for sizes in [one_bin().collect::<Vec<_>>(), vec![64; HOLES as usize], vec![1 << 50; 10_000]] {
        let mut heap = holes(sizes.into_iter(), 3, Placement::Renewal);
        while heap.ranges.bins().live() > 0 && heap.live() < HOLES + 5000 {
            let (steps, largest) = steps::of(|| heap.largest_free());
            assert!(steps <= BOUND, "{steps} steps to the longest hole");
            let (steps, result) = steps::of(|| heap.allocate(largest).unwrap());
            assert!(steps <= growth(&heap), "{steps} steps");
            let _ = result;
        }
        heap.check().unwrap();
    }
}

#[test]
fn an_aligned_request_near_full() {
    // Every hole is long enough, and none has an aligned start.
    let mut heap = holes((0..HOLES).map(|i| 4096 + i % 4096), 100_000, Placement::Renewal);
    for (size, align) in
        [(4096, 1 << 40), (5000, 1 << 62), (1, 1 << 45), (8191, 1 << 40), (9000, 2)]
    {
        let (steps, result) = steps::of(|| heap.allocate_aligned(size, align));
        assert!(result.is_none() || align < 1 << 40, "{result:?}");
        assert!(steps <= ALIGNED_BOUND, "{size} at {align}: {steps} steps");
    }
    heap.check().unwrap();
}

#[test]
fn a_scattered_request_of_many_pieces() {
    for sizes in [one_bin().collect::<Vec<_>>(), (0..HOLES).map(|i| 1 + i % 5000).collect()] {
        let mut heap = holes(sizes.iter().copied(), 1, Placement::Renewal);
        let mut sorted = sizes.clone();
        sorted.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
        for pieces in [2, 30, 1000] {
            let total: u64 = sorted[..pieces].iter().sum();
            let (steps, failed) = steps::of(|| heap.allocate_scattered(total + 1, pieces).is_err());
            assert!(failed && steps <= BOUND + 20 * pieces, "{pieces}: {steps} steps to a failure");
            let (steps, result) = steps::of(|| heap.allocate_scattered(total, pieces).unwrap());
            assert_eq!(result.len(), pieces);
            assert!(steps <= BOUND + 60 * pieces, "{pieces}: {steps} steps");
            heap.give_back(&result);
        }
        heap.check().unwrap();
    }
}

/// Everything allocated is freed, in an order that leaves the records scattered.
#[test]
fn frees_while_the_metadata_shrinks() {
    let mut heap = Heap::new(0..1 << 40, None, Placement::Renewal, u32::MAX);
    let mut live: Vec<_> = (0..HOLES).map(|_| heap.allocate(100).unwrap()).collect();
    let full = heap.metrics().metadata_bytes;
    for i in 0..live.len() {
        live.swap(i, (i * 48_271 + 11) % HOLES as usize);
    }
    for placed in live {
        let (steps, ()) = steps::of(|| heap.free(placed.node, placed.offset, 100));
        assert!(steps <= BOUND + growth(&heap), "{steps} steps at {} ranges", heap.ranges());
    }
    heap.check().unwrap();
    assert!(heap.metrics().metadata_bytes * 20 < full);
}

#[test]
fn segments_that_share_few_factors_with_the_alignment() {
    let boundary = (1 << 27) + 1;
    let mut heap = Heap::new(0..1 << 62, Some(boundary), Placement::Renewal, u32::MAX);
    let mut live = Vec::new();
    for i in 0..3000u64 {
        let (size, align) = (boundary - i % 7 * 1000, 1 << (20 + i % 20));
        let (steps, result) = steps::of(|| heap.allocate_aligned(size, align));
        assert!(steps <= BOUND, "{steps} steps");
        live.extend(result.map(|result| (result, size)));
        let (steps, _) = steps::of(|| heap.allocate_aligned(boundary, 1 << 62));
        assert!(steps <= BOUND, "{steps} steps to a failure");
    }
    heap.check().unwrap();
    assert!(live.len() > 1000 && heap.ranges.bins().live() as usize <= 3 * live.len() + 1);
    for (placed, size) in live {
        let (steps, ()) = steps::of(|| heap.free(placed.node, placed.offset, size));
        assert!(steps <= BOUND, "{steps} steps");
    }
    heap.check().unwrap();
}
