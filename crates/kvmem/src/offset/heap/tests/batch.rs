//! Batches at the limit of ranges.

use super::super::heap::Heap;
use crate::offset::placement::Placement;

/// The nodes of ranges whose coalescing is deferred count as used until they are coalesced.
#[test]
fn a_batch_counts_the_ranges_of_a_burst() {
    // Eleven ranges leave too few nodes for a batch of as many.
    let mut heap = Heap::new(0..110, None, Placement::BestFit, 16);
    let placed: Vec<_> = (0..11).map(|_| heap.allocate(10).unwrap()).collect();
    for placed in placed {
        heap.free(placed.node, placed.offset, 10);
    }
    assert!(heap.allocate_batch(10, 11).is_ok_and(|batch| batch.len() == 11));
    heap.check().unwrap();
}
