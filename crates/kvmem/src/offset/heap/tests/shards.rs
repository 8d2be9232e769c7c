//! A heap that is cut into shards, and free bytes that leave a shard.

use super::super::heap::Heap;
use crate::offset::placement::Placement;

fn heap(start: u64, capacity: u64, boundary: Option<u64>) -> Heap {
    Heap::new(start..start + capacity, boundary, Placement::Renewal, u32::MAX)
}

/// Shards that begin in a long free range begin at a multiple of a power of two behind the start,
/// at most a 64th of a shard long.
#[test]
fn shards_of_an_empty_space_are_about_equal() {
    let third = 333_333 / 4096 * 4096;
    let two_thirds = 666_666 / 4096 * 4096;
    assert_eq!(heap(0, 1_000_000, None).shard_starts(3), [0, third, two_thirds]);
    let start = 12_345;
    let starts = [start, start + third, start + two_thirds];
    assert_eq!(heap(start, 1_000_000, None).shard_starts(3), starts);
    assert_eq!(heap(0, 100, None).shard_starts(4), [0, 25, 50, 75]);
    assert_eq!(heap(0, 1000, Some(100)).shard_starts(4), [0, 200, 500, 700]);
    assert_eq!(heap(0, 1000, Some(600)).shard_starts(4), [0, 600]);
    assert_eq!(heap(5, 1000, None).shard_starts(1), [5]);
}

/// A shard begins with a range in use or with a short free one, and within a long free one.
#[test]
fn shards_begin_near_their_targets() {
    let mut heap = heap(0, 2000, None);
    let [_, free, _, short, _] = [100, 100, 800, 10, 990].map(|size| heap.allocate(size).unwrap());
    heap.free(free.node, free.offset, 100);
    heap.free(short.node, short.offset, 10);
    heap.coalesce();
    let starts = |targets: &[u64], long| heap.ranges.starts_near(targets, long);
    assert_eq!(starts(&[50, 150, 500, 600, 1005, 1500], 10), [0, 150, 200, 1000, 1010]);
    assert_eq!(starts(&[150, 1005], 9), [0, 150, 1005]);
    assert_eq!(starts(&[150], 100), [0, 100]);
    assert_eq!(starts(&[0, 99, 100, 199, 200, 1999], 0), [0, 100, 199, 200, 1010]);
}

#[test]
fn a_shard_keeps_the_limits_of_its_space() {
    let mut heap = Heap::new(0..1000, None, Placement::Renewal, 77);
    let used = heap.allocate(600).unwrap();
    assert_eq!(
        (heap.limit_of_space(), heap.max_ranges(), heap.offset_of(used.node)),
        (1000, 77, 0)
    );
    let mut shards = heap.cut(&[0, 800], 50);
    let limits = |shard: &Heap| (shard.limit(), shard.limit_of_space(), shard.max_ranges());
    assert_eq!(shards.iter().map(limits).collect::<Vec<_>>(), [(800, 1000, 50), (200, 1000, 50)]);
    shards[0].set_limit_of_space(1234);
    assert_eq!(limits(&shards[0]), (800, 1234, 50));
    assert_eq!((shards[0].end_of_last(), shards[1].end_of_last()), (600, 800));
    assert!(shards.iter().all(Heap::is_fresh));
    assert!(!shards[0].has_nodes_below(used.node) && shards[0].has_nodes_below(1000));
    shards[0].free(used.node, used.offset, 600);
    assert!(!shards[0].is_fresh());
    assert_eq!(shards[0].end_of_last(), 0);
}

/// Free bytes leave a shard at its start, some or all of them, up to the whole shard.
#[test]
fn free_bytes_leave_a_shard_at_its_start() {
    let ends = |shard: &mut Heap| {
        shard.check().unwrap();
        let ends = shard.shard_ends();
        assert_eq!(ends.end - ends.start, shard.capacity());
        (ends.start, ends.end, ends.head, ends.tail)
    };
    let mut whole = heap(0, 1000, None);
    let [first, second] = [300, 100].map(|size| whole.allocate(size).unwrap());
    whole.free(first.node, first.offset, 300);
    let mut shard = whole.cut(&[0, 900], 50).remove(0);
    assert_eq!(ends(&mut shard), (0, 900, 300, 500));
    shard.cut_start(0, 900);
    assert_eq!(ends(&mut shard), (0, 900, 300, 500));
    shard.cut_start(120, 900);
    assert_eq!(ends(&mut shard), (120, 900, 180, 500));
    shard.cut_start(180, 900);
    assert_eq!(ends(&mut shard), (300, 900, 0, 500));
    assert_eq!(shard.check_used(second, 100), Ok(()));
    assert_eq!((shard.free_bytes(), shard.ranges()), (500, 2));
    shard.free(second.node, second.offset, 100);
    shard.cut_start(600, 900);
    assert_eq!((ends(&mut shard), shard.ranges()), ((900, 900, 0, 0), 0));
    assert_eq!(shard.max_ranges(), 50);
    shard.grow(50).unwrap();
    assert_eq!(ends(&mut shard), (900, 950, 50, 50));
    assert_eq!(shard.allocate(50).map(|placed| placed.offset), Some(900));
}
