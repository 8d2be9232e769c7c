//! Spaces that do not begin at 0.

use super::super::heap::Heap;
use crate::offset::error::SpaceError;
use crate::offset::placement::Placement;

const START: u64 = 3000;

fn heap(boundary: Option<u64>) -> Heap {
    Heap::new(START..START + 1000, boundary, Placement::Renewal, u32::MAX)
}

#[test]
fn ranges_lie_in_the_space() {
    for boundary in [None, Some(300)] {
        let mut heap = heap(boundary);
        assert_eq!((heap.capacity(), heap.limit()), (1000, boundary.unwrap_or(1000)));
        let placed: Vec<_> = (0..10).map(|_| heap.allocate(100).expect("a tenth fits")).collect();
        for (placed, at) in placed.iter().zip(0..) {
            assert_eq!(placed.offset, START + 100 * at, "in order from the start");
        }
        assert!(heap.allocate(1).is_none());
        heap.check().unwrap();
        for placed in placed.iter().step_by(2).chain(placed.iter().skip(1).step_by(2)) {
            heap.free(placed.node, placed.offset, 100);
            heap.check().unwrap();
        }
        let aligned = heap.allocate_aligned(200, 256).expect("there is room");
        assert!(aligned.offset.is_multiple_of(256), "of the whole space, not of the part");
        heap.free(aligned.node, aligned.offset, 200);
        let map = heap.map();
        assert_eq!((map.len(), map[0].offset, map[0].size), (1, START, 1000));
        heap.check().unwrap();
    }
}

#[test]
fn the_end_moves_and_the_start_stays() {
    for boundary in [None, Some(300)] {
        let mut heap = heap(boundary);
        let first = heap.allocate(250).expect("it fits");
        heap.grow(1700).unwrap();
        heap.check().unwrap();
        assert_eq!((heap.capacity(), heap.free_bytes()), (1700, 1450));
        let error = heap.shrink_to(249);
        assert_eq!(error, Err(SpaceError::InUse { requested: 249, end_of_last: START + 250 }));
        heap.shrink_to(250).unwrap();
        assert_eq!((heap.capacity(), heap.free_bytes()), (250, 0));
        heap.check().unwrap();
        heap.grow(400).unwrap();
        heap.free(first.node, first.offset, 250);
        assert_eq!(heap.map()[0].offset..START + heap.map()[0].size, START..START + 400);
        heap.check().unwrap();
    }
}

/// Slots are counted from the start, so a space of a few objects loses nothing there.
#[test]
fn slots_begin_at_the_start() {
    let large = |i: u64| (100 + i % 20) << 10;
    let slot = large(19);
    // Not a multiple of the slots.
    let start = 10 * slot + 12_345;
    let mut heap = Heap::new(start..start + 8 * slot, None, Placement::Renewal, u32::MAX);
    // Until the sizes are known, and slots exist for them.
    let mut held = std::collections::VecDeque::new();
    for i in 0..2000 {
        let size = large(7 * i);
        let placed = loop {
            match heap.allocate(size) {
                Some(placed) => break placed,
                None => {
                    let (placed, size): (crate::offset::heap::Placed, u64) =
                        held.pop_front().expect("an empty space has room");
                    heap.free(placed.node, placed.offset, size);
                }
            }
        };
        held.push_back((placed, size));
    }
    assert!(heap.policy.slot(slot).is_some(), "the sizes have slots");
    let at_slots = held.iter().filter(|(placed, _)| (placed.offset - start) % slot == 0).count();
    assert!(2 * at_slots > held.len(), "{at_slots} of {}", held.len());
    assert!(held.len() >= 7, "{} objects of up to an eighth are in the space", held.len());
}
