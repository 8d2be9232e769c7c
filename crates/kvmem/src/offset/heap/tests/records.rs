//! Records of holes that move, while few are left of many.

use super::super::bins::Bins;
use super::super::heap::Heap;
use super::super::ranges::Placed;
use crate::offset::placement::Placement;

/// Bytes of a record.
const RECORD: usize = 32;

/// Frees ranges while the heap has more records than it needs, and checks what points to them.
fn free_all(heap: &mut Heap, ranges: impl IntoIterator<Item = (Placed, u64)>) {
    for (at, (Placed { node, offset }, size)) in ranges.into_iter().enumerate() {
        heap.free(node, offset, size);
        if at % 32 == 0 {
            heap.check().unwrap();
        }
    }
    heap.check().unwrap();
    let bins = heap.ranges.bins();
    let slots = 4 * bins.live() as usize + 1024 + 2 * 128;
    let (records, bound) = (bins.bytes() - Bins::new().bytes(), RECORD * slots + 4096);
    assert!(records <= bound, "{records} of {bound} bytes for {} holes", bins.live());
}

/// Runs, the wilderness and binned holes are found where their records went.
#[test]
fn records_of_runs_move() {
    const SEGMENT: u64 = 1024;
    const SIZE: u64 = 64;
    let mut heap = Heap::new(0..300 * SEGMENT, Some(SEGMENT), Placement::BestFit, u32::MAX);
    let count = 300 * SEGMENT / SIZE;
    let all: Vec<(Placed, u64)> =
        (0..count).map(|_| (heap.allocate(SIZE).unwrap(), SIZE)).collect();
    let segment = |placed: &(Placed, u64)| placed.0.offset / SEGMENT;
    // Every second range: as many holes as ranges are left.
    let (odd, even): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(placed, _)| placed.offset / SIZE % 2 == 1);
    free_all(&mut heap, odd);
    // A run in each sixteen segments, and then the end of the space.
    let (runs, rest): (Vec<_>, Vec<_>) = even.into_iter().partition(|it| segment(it) % 16 == 5);
    free_all(&mut heap, runs);
    let (last, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|it| segment(it) > 290);
    free_all(&mut heap, last.into_iter().rev());
    assert_eq!(heap.largest_free(), SEGMENT);
    let (near, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|it| segment(it) % 16 < 9);
    free_all(&mut heap, near.into_iter().rev());
    free_all(&mut heap, rest);
    assert_eq!((heap.metrics().free_ranges, heap.free_bytes()), (1, 300 * SEGMENT));
}

/// So is the small-object region.
#[test]
fn the_record_of_the_region_moves() {
    let mut heap = Heap::new(0..1 << 27, None, Placement::Renewal, u32::MAX);
    let (small, large) = (16, 40_000);
    let ranges: Vec<(Placed, u64)> = (0..4000)
        .map(|at| if at % 2 == 0 { large } else { small })
        .map(|size| (heap.allocate(size).unwrap(), size))
        .collect();
    let end = ranges.last().map_or(0, |(placed, size)| placed.offset + size);
    heap.shrink_to(end).unwrap();
    let (larges, smalls): (Vec<_>, Vec<_>) = ranges.into_iter().partition(|it| it.1 == large);
    free_all(&mut heap, larges.into_iter().rev());
    assert!(heap.policy.is_small(small));
    heap.coalesce();
    let in_region = heap.allocate(small).unwrap();
    assert!(heap.ranges.region_holds(small), "a region is open");
    // All but a few, which keep the holes apart.
    let (few, most): (Vec<_>, Vec<_>) =
        smalls.into_iter().partition(|(placed, _)| placed.offset / 40_016 % 100 == 7);
    free_all(&mut heap, most);
    assert!(heap.ranges.region_holds(small), "it still is");
    let next = heap.allocate(small).unwrap();
    assert_eq!(next.offset + small, in_region.offset, "cut from the end of the region");
    free_all(&mut heap, few.into_iter().chain([(in_region, small), (next, small)]));
    heap.close_region();
    assert_eq!(heap.largest_free(), end);
}
