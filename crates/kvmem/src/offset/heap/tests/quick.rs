//! Quick lists: which ranges they hold, when they release them, and that nothing fails because of
//! them.

use super::super::heap::Heap;
use super::super::ranges::Placed;
use crate::offset::placement::Placement;
use crate::offset::steps;

const SIZE: u64 = 64;
/// Ranges of `SIZE` bytes that fill half of the space.
const HALF: u64 = 8;
const CAPACITY: u64 = 2 * HALF * SIZE;

/// Returns a space of which just half is used, and the ranges.
fn half_full() -> (Heap, Vec<Placed>) {
    let mut heap = Heap::new(0..CAPACITY, None, Placement::Renewal, u32::MAX);
    let placed = (0..HALF).map(|_| allocate(&mut heap, SIZE)).collect();
    (heap, placed)
}

// After each call, as the holder of the lock does, the length of the longest hole is read.

fn allocate(heap: &mut Heap, size: u64) -> Placed {
    let placed = heap.allocate(size).unwrap();
    heap.largest_coalesced();
    placed
}

fn free(heap: &mut Heap, placed: Placed, size: u64) {
    heap.free(placed.node, placed.offset, size);
    heap.largest_coalesced();
}

#[test]
fn a_freed_range_is_the_next_one_of_its_size() {
    let (mut heap, placed) = half_full();
    for &victim in [placed[3], placed[2], placed[7]].iter().rev() {
        free(&mut heap, victim, SIZE);
    }
    // In the order of their frees, the last first, although two of them are neighbours.
    for expected in [placed[3], placed[2], placed[7]] {
        let (steps, again) = steps::of(|| allocate(&mut heap, SIZE));
        assert_eq!((again, steps), (expected, 0), "no record is read");
    }
    heap.check().unwrap();
}

#[test]
fn a_request_that_fits_only_what_is_coalesced_succeeds() {
    let (mut heap, placed) = half_full();
    placed.into_iter().for_each(|placed| free(&mut heap, placed, SIZE));
    assert_eq!(heap.ranges.bins().live(), 1, "all are in the lists");
    let coalesced = heap.largest_coalesced();
    assert_eq!(heap.largest_free_bound(coalesced), CAPACITY);
    assert_eq!(heap.allocate(CAPACITY).map(|placed| placed.offset), Some(0));
    heap.check().unwrap();
}

#[test]
fn a_space_that_is_roomy_no_more_has_nothing_in_the_lists() {
    let (mut heap, placed) = half_full();
    free(&mut heap, placed[1], SIZE);
    free(&mut heap, placed[2], SIZE);
    // A size of its own is cut from the hole that made the space roomy.
    assert_eq!(allocate(&mut heap, SIZE / 2).offset, HALF * SIZE);
    // The next call finds the space not roomy, and the two ranges are one hole.
    assert_eq!(allocate(&mut heap, 2 * SIZE).offset, placed[1].offset);
    heap.check().unwrap();
}

#[test]
fn long_ranges_are_coalesced_at_once() {
    let mut heap = Heap::new(0..CAPACITY, None, Placement::Renewal, u32::MAX);
    let longer = SIZE + 1;
    let placed = [0; 2].map(|_| allocate(&mut heap, longer));
    placed.into_iter().for_each(|placed| free(&mut heap, placed, longer));
    assert_eq!(heap.largest_coalesced(), CAPACITY);
    heap.check().unwrap();
}

/// Sizes that nobody requests again do not occupy the lists for ever, and giving them up takes a
/// bounded number of steps.
#[test]
fn sizes_that_are_requested_no_more_leave() {
    let mut heap = Heap::new(0..1 << 40, None, Placement::Renewal, u32::MAX);
    let old: Vec<_> = (0..1000).map(|i| (allocate(&mut heap, 5000 + i), 5000 + i)).collect();
    old.into_iter().for_each(|(placed, size)| free(&mut heap, placed, size));
    let kept = |heap: &mut Heap| {
        let placed = allocate(heap, 4096);
        free(heap, placed, 4096);
        steps::of(|| heap.allocate(4096)).0 == 0
    };
    let mut longest = 0;
    let mut live = Vec::new();
    for _ in 0..4000 {
        live.extend((0..2).map(|_| allocate(&mut heap, 4096)));
        let first = live.swap_remove(0);
        longest = longest.max(steps::of(|| free(&mut heap, first, 4096)).0);
    }
    assert!(kept(&mut heap), "the lists still hold the old sizes");
    assert!(longest <= 1000, "{longest} steps");
    heap.check().unwrap();
}

#[test]
fn a_batch_counts_what_the_lists_hold() {
    // Eleven ranges leave too few nodes for a batch of as many, until they are coalesced.
    let mut heap = Heap::new(0..10_000, None, Placement::BestFit, 16);
    let placed: Vec<_> = (0..11).map(|_| allocate(&mut heap, 10)).collect();
    placed.into_iter().for_each(|placed| free(&mut heap, placed, 10));
    assert!(heap.allocate_batch(10, 11).is_ok_and(|batch| batch.len() == 11));
    heap.check().unwrap();
}
