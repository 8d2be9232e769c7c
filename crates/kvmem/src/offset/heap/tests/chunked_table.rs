use super::super::chunked_table::{CHUNK, ChunkedTable, MAX_SLOTS, TableSlot};

/// As long as a node.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(align(16))]
struct TestSlot(u32);

impl TableSlot for TestSlot {
    const EMPTY: Self = TestSlot(0);
}

#[test]
fn indexes_are_in_order_and_stable() {
    let mut table = ChunkedTable::<_, 256>::new(MAX_SLOTS);
    let ids: Vec<u32> = (0..1000).map(|n| table.insert(TestSlot(n))).collect();
    assert_eq!(ids, (0..1000).collect::<Vec<_>>());
    for id in (0..1000).step_by(2) {
        assert_eq!(table.remove(id), TestSlot(id));
    }
    for id in (1..1000).step_by(2) {
        assert_eq!(table[id], TestSlot(id));
    }
    assert_eq!(table.live(), 500);
}

#[test]
fn follows_the_live_set_down() {
    let mut table = ChunkedTable::<_, 256>::new(MAX_SLOTS);
    for n in 0..100_000 {
        table.insert(TestSlot(n));
    }
    let full = table.bytes();
    for id in 0..100_000 {
        table.remove(id);
    }
    assert_eq!(table.live(), 0);
    assert!(table.bytes() < full / 30, "{} of {full} bytes are left", table.bytes());
    // And up again, over indexes that were used before.
    for n in 0..100_000 {
        let id = table.insert(TestSlot(n));
        assert!(id < 100_000 + CHUNK as u32);
    }
}

#[test]
fn survivors_keep_their_chunks_only() {
    let mut table = ChunkedTable::<_, 256>::new(MAX_SLOTS);
    for n in 0..100_000 {
        table.insert(TestSlot(n));
    }
    let full = table.bytes();
    for id in (0..100_000).filter(|id| id % 5_000 != 7) {
        table.remove(id);
    }
    for id in (7..100_000).step_by(5_000) {
        assert_eq!(table[id], TestSlot(id));
    }
    assert!(table.bytes() < full / 25, "{} of {full} bytes are left", table.bytes());
}

/// Slots whose index is stored nowhere are compacted, and free nearly all memory that they do
/// not need.
#[test]
fn the_last_slots_move_down() {
    let mut table = ChunkedTable::<_, 64>::new(MAX_SLOTS);
    for n in 0..10_000 {
        table.insert(TestSlot(n));
    }
    for id in (0..10_000).filter(|id| id % 100 != 0) {
        table.remove(id);
    }
    assert_eq!(table.live(), 100);
    let mut moves = 0;
    while table.slots() > 256
        && let Some((old, new)) = table.move_slot_down()
    {
        assert!(new < old && table[new].0.is_multiple_of(100));
        moves += 1;
    }
    assert!(
        moves <= 100 && table.slots() <= 256,
        "{} slots are left after {moves} moves",
        table.slots()
    );
    assert_eq!(table.live(), 100);
}
