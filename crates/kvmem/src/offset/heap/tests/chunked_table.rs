use std::collections::BTreeMap;

use kvmem_testkit::random::Random;

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

/// A table beside a map of its slots in use.
struct Compared<const CHUNK: usize> {
    table: ChunkedTable<TestSlot, CHUNK>,
    slots: BTreeMap<u32, TestSlot>,
    random: Random,
}

impl<const CHUNK: usize> Compared<CHUNK> {
    fn new(table: ChunkedTable<TestSlot, CHUNK>, slots: BTreeMap<u32, TestSlot>) -> Self {
        Compared { table, slots, random: Random::new(5) }
    }

    fn insert(&mut self) {
        let value = TestSlot(self.random.below(1 << 30) as u32);
        let id = self.table.insert(value);
        assert_eq!(self.slots.insert(id, value), None, "slot {id} was in use");
    }

    fn remove(&mut self, id: u32) {
        assert_eq!(Some(self.table.remove(id)), self.slots.remove(&id));
    }

    /// Removes one of the slots in use at or behind a random one.
    fn remove_any(&mut self) {
        let Some((&last, _)) = self.slots.last_key_value() else { return };
        let at = self.random.below(u64::from(last) + 1) as u32;
        let id = *self.slots.range(at..).next().expect("the last one is there").0;
        self.remove(id);
    }

    fn move_down(&mut self) -> bool {
        let Some((old, new)) = self.table.move_slot_down() else { return false };
        let value = self.slots.remove(&old).expect("a slot in use moves");
        assert!(new < old && self.slots.insert(new, value).is_none(), "{old} moves to {new}");
        true
    }

    fn compare(&self) {
        self.table.check();
        assert_eq!(self.table.live() as usize, self.slots.len());
        assert!(self.slots.iter().all(|(&id, &value)| self.table[id] == value));
        let end = self.slots.last_key_value().map_or(0, |(&last, _)| u64::from(last) + 1);
        assert!(self.table.end() >= end && self.table.end().is_multiple_of(CHUNK as u64));
    }
}

/// A history of all calls, in which the number of slots rises and falls.
fn agrees_with_a_map<const CHUNK: usize>(targets: &[usize]) {
    let mut compared = Compared::<CHUNK>::new(ChunkedTable::new(MAX_SLOTS), BTreeMap::new());
    for (round, &target) in targets.iter().enumerate() {
        for step in 0.. {
            let len = compared.slots.len();
            match compared.random.below(8) {
                0 if round % 3 == 2 => _ = compared.move_down(),
                0 | 1 if len > 0 => compared.remove_any(),
                _ if len < target => compared.insert(),
                _ => compared.remove_any(),
            }
            if step % 16 == 0 {
                compared.compare();
            }
            if len == target {
                break;
            }
        }
    }
    compared.compare();
}

#[test]
fn a_table_agrees_with_a_map() {
    agrees_with_a_map::<4>(&[50, 10, 40, 1500, 3, 700, 0, 64, 65, 200, 1, 900, 20]);
    agrees_with_a_map::<128>(&[3000, 20, 2000, 300, 2500, 0, 10]);
}

/// A table is created with slots in use, and the others are the ones that are used next.
#[test]
fn a_table_begins_with_slots_in_use() {
    for ids in [vec![0], vec![1, 3, 2], vec![0, 200, 201, 640, 5], (0..300).collect(), vec![999]] {
        let slots: BTreeMap<u32, TestSlot> = ids.iter().map(|&id| (id, TestSlot(7 + id))).collect();
        let create = || slots.iter().map(|(&id, &slot)| (id, slot));
        let last = ids.iter().max().map_or(0, |&id| u64::from(id));
        let mut small =
            Compared::new(ChunkedTable::<_, 4>::with_slots(9999, create()), slots.clone());
        let mut large =
            Compared::new(ChunkedTable::<_, 128>::with_slots(9999, create()), slots.clone());
        assert_eq!(
            (small.table.end(), large.table.end()),
            ((last / 4 + 1) * 4, (last / 128 + 1) * 128)
        );
        small.compare();
        large.compare();
        let free = small.table.slots() + large.table.slots() - 2 * ids.len() as u32;
        for _ in 0..small.table.slots() - ids.len() as u32 {
            small.insert();
        }
        for _ in 0..large.table.slots() - ids.len() as u32 {
            large.insert();
        }
        let slots = small.table.slots() + large.table.slots();
        assert_eq!(
            (slots, small.table.remaining()),
            (free + 2 * ids.len() as u32, 9999 - small.table.live())
        );
        for _ in 0..500 {
            small.insert();
            large.insert();
        }
        small.compare();
        large.compare();
        while !small.slots.is_empty() {
            small.remove_any();
        }
        while !large.slots.is_empty() {
            large.remove_any();
        }
        small.compare();
        large.compare();
    }
}

/// However many slots are on the stack, a slot that moves is one in use, and what was freed is
/// free: the chunks of the slots freed last are freed, too.
#[test]
fn slots_on_the_stack_do_not_move() {
    for freed in (1..20).chain(120..135) {
        let mut compared = Compared::<128>::new(ChunkedTable::new(MAX_SLOTS), BTreeMap::new());
        (0..FLAT + 500).for_each(|_| compared.insert());
        let last = FLAT as u32 + 499;
        // The first slots of the last chunks, but not the very first.
        let first = last / 128 * 128 + 1;
        (0..freed).for_each(|at| compared.remove([700 + at, first + at / 2][at as usize % 2]));
        assert!(compared.move_down(), "{freed} slots are free before the last chunk");
        compared.table.check();
        assert!(!compared.slots.contains_key(&(first - 1)), "the first one in use moves");
        compared.compare();
    }
}

/// The search for a free slot passes chunks that are full, and goes on where it ended.
#[test]
fn a_slot_moves_past_full_chunks() {
    let mut compared = Compared::<4>::new(ChunkedTable::new(MAX_SLOTS), BTreeMap::new());
    (0..1200).for_each(|_| compared.insert());
    // Chunks 0 to 99 are full.
    (400..1100).filter(|id| id % 4 > 0).for_each(|id| compared.remove(id));
    let moved = (0..500).filter(|_| compared.move_down()).count();
    compared.compare();
    assert!(moved > 100, "{moved} slots move");
    assert!(compared.slots.keys().all(|&id| id < 1100));
}

/// The vector of a flat table follows its slots down at a quarter, and is twice as long then.
#[test]
fn a_flat_vector_is_shortened_at_a_quarter() {
    let mut table = ChunkedTable::<_>::new(MAX_SLOTS);
    (0..FLAT as u32).for_each(|n| _ = table.insert(TestSlot(n)));
    let mut capacity = table.flat_capacity();
    assert_eq!(capacity, FLAT);
    for id in (1..FLAT as u32).rev() {
        table.remove(id);
        if table.slots() as usize * 4 < capacity {
            capacity = 2 * table.slots() as usize;
        }
        assert_eq!(table.flat_capacity(), capacity, "{} slots", table.slots());
    }
    table.check();
}

/// A vector grows by an eighth, at least by sixteen chunks, and by the room for the calls that
/// lengthen the others.
#[test]
fn vectors_grow_seldom() {
    let mut table = ChunkedTable::<_, 4>::new(MAX_SLOTS);
    let (mut copies, mut before) = (0, [0; 3]);
    for n in 0..4 * 3000 {
        table.insert(TestSlot(n));
        let capacities = table.capacities();
        copies += (0..3).filter(|&at| capacities[at] != before[at]).count();
        before = capacities;
        let chunks = table.slots() as usize / 4;
        for capacity in capacities {
            assert!(table.is_flat() || capacity <= chunks + (chunks / 8).max(16) + 6);
        }
        if n == 4 * 128 {
            assert!(copies <= 3 * (128 / 16) + 3, "{copies} copies for 128 chunks");
        }
    }
    table.check();
    // Without the eighths there would be five hundred.
    assert!(copies <= 130, "{copies} copies");
}

/// The vectors of a table that was long become shorter, to an eighth more than they need, and grow
/// again.
#[test]
fn vectors_shrink_to_what_they_need() {
    let mut table = ChunkedTable::<_, 4>::new(MAX_SLOTS);
    (0..40_000).for_each(|n| _ = table.insert(TestSlot(n)));
    for id in (0..40_000).rev() {
        table.remove(id);
        let chunks = table.end() as usize / 4;
        let before = table.capacities();
        if id % 256 == 0 {
            table.check();
        }
        for capacity in before {
            // The two calls that shorten the others come first.
            assert!(capacity <= 2 * (chunks + 4) + 256 || chunks < 256, "{before:?}: {chunks}");
        }
        if id == 20_000 {
            assert!(before.iter().all(|&it| it > 5600), "{before:?} of {chunks} are shortened");
        }
    }
    table.check();
    assert!(table.capacities().iter().all(|&it| it < 40), "{:?}", table.capacities());
    (0..4000).for_each(|n| _ = table.insert(TestSlot(n)));
    table.check();
}

/// A few chunks are left that were among the first: at once the vectors have just these.
#[test]
fn few_chunks_are_left_among_the_first() {
    for kept in [1, 4, 9, 90, 200] {
        let mut compared = Compared::<4>::new(ChunkedTable::new(MAX_SLOTS), BTreeMap::new());
        (0..6000).for_each(|_| compared.insert());
        for id in (0..6000).filter(|&id| id != 4 * kept + 2) {
            compared.remove(id);
        }
        compared.compare();
        let chunks = compared.table.end() as usize / 4;
        assert!(chunks <= kept as usize + 2, "{chunks} chunks");
        let capacities = compared.table.capacities();
        assert!(capacities.iter().all(|&it| it <= chunks + chunks / 8 + 3), "{capacities:?}");
        (0..300).for_each(|_| compared.insert());
        compared.compare();
    }
}
