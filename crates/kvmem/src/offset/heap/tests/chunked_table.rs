use super::super::chunked_table::{CHUNK_SLOTS, ChunkedTable, FLAT_CHUNKS, MAX_SLOTS, TableSlot};
use crate::offset::steps;

/// As long as a node.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(align(16))]
struct TestSlot(u32);

impl TableSlot for TestSlot {
    const EMPTY: Self = TestSlot(0);
}

/// Slots of a flat table.
const FLAT: usize = FLAT_CHUNKS * CHUNK_SLOTS;

#[test]
fn indexes_are_in_order_and_stable() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
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

/// A table is flat up to a number of slots, and however it grows, shrinks and grows again, slots
/// keep their values and their indexes.
#[test]
fn slots_keep_their_values_while_the_table_changes_its_form() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
    let mut live: Vec<(u32, u32)> = Vec::new();
    let mut state = 3u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for target in [FLAT / 2, 10, FLAT, 0, FLAT - 1, FLAT + 1, 40, 3 * FLAT, FLAT / 2, 0, 9] {
        while live.len() < target {
            let value = random(1 << 20) as u32;
            live.push((table.insert(TestSlot(value)), value));
        }
        while live.len() > target {
            let (id, value) = live.swap_remove(random(live.len()));
            assert_eq!(table.remove(id), TestSlot(value));
        }
        assert!(live.iter().all(|&(id, value)| table[id] == TestSlot(value)));
        assert!(live.iter().all(|&(id, _)| table.contains(id)) && !table.contains(u32::MAX - 1));
        let distinct: std::collections::BTreeSet<u32> = live.iter().map(|&(id, _)| id).collect();
        assert_eq!((distinct.len(), table.live() as usize), (target, target));
        assert!(table.is_flat() || target != FLAT);
        assert!(!table.is_flat() || target <= FLAT);
    }
    assert!(table.bytes() < 4 * CHUNK_SLOTS * size_of::<TestSlot>());
}

/// The last slots of a flat table are freed with their chunks, and the others stay.
#[test]
fn a_flat_table_becomes_shorter() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
    for n in 0..FLAT as u32 {
        table.insert(TestSlot(n));
    }
    let full = table.bytes();
    for id in (1..FLAT as u32).rev() {
        table.remove(id);
    }
    assert!(table.is_flat() && table.bytes() < full / 2, "{} bytes are left", table.bytes());
    assert_eq!((table[0], table.live()), (TestSlot(0), 1));
    assert!(!table.contains(FLAT as u32 - 1));
}

/// A call copies at most one of the vectors of chunks, when it grows and when it shrinks.
#[test]
fn a_call_copies_one_word_per_chunk() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
    let mut copies = 0;
    for n in 0..100_000 {
        let (steps, _) = steps::of(|| table.insert(TestSlot(n)));
        // The end of the flat table.
        let vectors = if n as usize == FLAT { 3 } else { 1 };
        let chunks = table.slots() as usize / CHUNK_SLOTS;
        assert!(steps <= 1 + vectors * chunks, "{steps} steps at {n}");
        copies += usize::from(steps > 1);
    }
    assert!(copies > 60, "{copies} calls copied a vector");
    let chunks = table.slots() as usize / CHUNK_SLOTS;
    let slots = table.slots() as usize * size_of::<TestSlot>();
    // An address, a word of bits and two links for each chunk.
    let vectors = chunks * 4 * size_of::<u64>();
    let slack = table.bytes() - slots - vectors;
    assert!(slack <= vectors / 8 + 400, "{slack} bytes of slack");
    for id in (0..100_000).rev() {
        let (steps, _) = steps::of(|| table.remove(id));
        assert!(steps <= 1 + chunks / 2, "{steps} steps at {id}");
    }
    // The chunk of the slots on the stack, and one that is kept for the next slot.
    assert!(table.bytes() < 3000, "{} bytes are left", table.bytes());
}

/// However the table changes, its vectors are at most twice as long as they need to be.
#[test]
fn vectors_follow_the_chunks() {
    let mut table = ChunkedTable::<_, 4>::new(MAX_SLOTS);
    // Knuth's generator: model checks compile this file without the testkit.
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut live = Vec::new();
    for round in 0..200 {
        let target = random(if round % 2 == 0 { 40_000 } else { 400 }) as usize;
        while live.len() < target {
            live.push(table.insert(TestSlot(live.len() as u32)));
        }
        while live.len() > target {
            // Mostly the last, which leaves freed chunks at the end.
            let at = live.len() - 1 - random(live.len().min(100) as u64) as usize;
            table.remove(live.swap_remove(at));
        }
        let slots = table.slots() as usize;
        let last = live.iter().max().map_or(0, |&id| id as usize / 4 + 1);
        let vectors = 4 * size_of::<u64>() * (2 * last + 4 * 256);
        let bound = slots * size_of::<TestSlot>() + vectors;
        assert!(table.bytes() <= bound, "{} of {bound} bytes", table.bytes());
    }
}

#[test]
fn follows_the_live_set_down() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
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
        assert!(id < 100_000 + CHUNK_SLOTS as u32);
    }
}

#[test]
fn survivors_keep_their_chunks_only() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
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
    assert!(table.bytes() < full / 20, "{} of {full} bytes are left", table.bytes());
}

/// Slots whose index is stored nowhere are compacted, and free nearly all memory that they do
/// not need.
#[test]
fn the_last_slots_move_down() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
    for n in 0..10_000 {
        table.insert(TestSlot(n));
    }
    for id in (0..10_000).filter(|id| id % 100 != 0) {
        table.remove(id);
    }
    assert_eq!(table.live(), 100);
    let mut moves = 0;
    for _ in 0..3 * table.live() {
        if table.slots() > 256
            && let Some((old, new)) = table.move_slot_down()
        {
            assert!(new < old && table[new].0.is_multiple_of(100));
            moves += 1;
        }
    }
    assert!(
        moves <= 100 && table.slots() <= 256,
        "{} slots are left after {moves} moves",
        table.slots()
    );
    assert_eq!(table.live(), 100);
}

/// However high the slots on the stack are: a table that is nearly empty again takes little memory.
#[test]
fn the_slots_freed_last_hold_no_chunks_of_a_table_that_was_long() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
    for n in 0..100_000 {
        table.insert(TestSlot(n));
    }
    for id in 2..100_000 {
        table.remove(id);
    }
    assert!(table.bytes() < 5000, "{} bytes are left", table.bytes());
    assert_eq!((table[0], table[1], table.live()), (TestSlot(0), TestSlot(1), 2));
}
