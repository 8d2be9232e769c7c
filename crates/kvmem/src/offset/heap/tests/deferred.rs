//! Deferred coalescing: which ranges are deferred, and until when.

use super::super::heap::Heap;
use super::super::ranges::Placed;
use crate::offset::placement::Placement;

fn free(heap: &mut Heap, Placed { node, offset }: Placed, size: u64) {
    heap.free(node, offset, size);
}

/// From the fifth free in a row on, sixteen ranges at a time are coalesced.
#[test]
fn ranges_of_a_burst_are_coalesced_sixteen_at_a_time() {
    let mut heap = Heap::new(0..6401, None, Placement::BestFit, u32::MAX);
    let placed: Vec<Placed> = (0..99).map(|_| heap.allocate(64).unwrap()).collect();
    // No free is of the size that was requested last.
    heap.allocate(65).unwrap();
    for (frees, &placed) in (1..).zip(placed.iter().step_by(2).take(40)) {
        free(&mut heap, placed, 64);
        let deferred = if frees < 5 { 0 } else { (frees - 5) % 16 + 1 };
        assert_eq!(heap.deferred.totals(), (deferred, 64 * deferred as u64), "{frees} frees");
        assert_eq!(heap.free_bytes(), 64 * frees as u64);
    }
    assert!(heap.allocate(63).is_some());
    assert_eq!(heap.deferred.totals(), (0, 0), "a request coalesces them");
    free(&mut heap, placed[1], 64);
    assert_eq!(heap.deferred.totals(), (0, 0), "it ends the burst");
    heap.check().unwrap();
}

/// A range that waits for the next request of its size is coalesced when a burst goes on.
#[test]
fn a_burst_ends_the_wait_for_a_request_of_the_same_size() {
    let mut heap = Heap::new(0..110, None, Placement::BestFit, u32::MAX);
    let short: Vec<Placed> = (0..10).map(|_| heap.allocate(1).unwrap()).collect();
    let long = heap.allocate(100).unwrap();
    short[..4].iter().for_each(|&placed| free(&mut heap, placed, 1));
    assert_eq!(heap.deferred.totals(), (0, 0));
    free(&mut heap, long, 100);
    assert_eq!(heap.deferred.totals(), (1, 100));
    free(&mut heap, short[6], 1);
    assert_eq!(heap.deferred.totals(), (1, 1), "the other one is a hole");
    assert_eq!(heap.allocate(100).map(|placed| placed.offset), Some(10));
    heap.check().unwrap();
    assert_eq!((heap.free_bytes(), heap.live()), (5, 6));
}

#[test]
fn a_space_is_fresh_until_the_first_free() {
    let mut heap = Heap::new(0..1000, None, Placement::BestFit, u32::MAX);
    let placed = [0; 4].map(|_| heap.allocate(100).unwrap());
    heap.free_batch(&[]);
    let pieces = heap.allocate_up_to(50, 3);
    heap.give_back(&pieces);
    assert!(heap.is_fresh(), "what a failed request gives back is no free");
    assert_eq!((heap.free_bytes(), heap.largest_coalesced()), (600, 600));
    heap.free_batch(&placed[1..2]);
    assert!(!heap.is_fresh());
    heap.free_batch(&[]);
    assert!(!heap.is_fresh());
}
