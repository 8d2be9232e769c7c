//! *Table*: slots named by a `u32` that stays good while the slot is in use.
//!
//! Slots stand in blocks, so a table never moves a slot while it grows: the first ones in a block
//! that lives as long as the table, which spares small spaces one step of every look-up, the rest
//! in chunks of [`CHUNK`]. One word a chunk says which of its slots are free. Chunks with a free
//! slot stand in a list; a chunk in which nothing is in use any more is given back at once, but for
//! one that is kept for the next slot. So the table follows the live set both ways, and chunks are
//! short so that few survivors keep little.
//!
//! Every operation takes O(1), but that the vectors of chunks grow by copying: 3 words for each 64
//! slots.
//!
//! New slots come in index order out of a fresh chunk: ranges that were cut one after the other lie
//! side by side in memory, so that looking at a range's neighbours mostly stays in one cache line.

use std::ops::{Index, IndexMut};

use super::steps;

/// The `u32` that names no slot.
pub(super) const NIL: u32 = u32::MAX;

const SHIFT: u32 = 6;
/// Slots of each chunk: as many as a word has bits.
const CHUNK: usize = 1 << SHIFT;
/// Slots a table can hold: the last chunk is never made, so that no slot is called [`NIL`].
pub(super) const MAX_SLOTS: u32 = NIL - 2 * CHUNK as u32;
/// Chunks that one call looks at to shorten the vectors, or to find a free slot far down.
const TRIM: usize = 256;

/// What a table can hold: plain data.
pub(super) trait TableSlot: Copy {
    /// A slot that was never used.
    const EMPTY: Self;
}

/// Slots, the first `FIRST` of them (a multiple of [`CHUNK`]) within the table itself.
pub(super) struct ChunkedTable<T, const FIRST: usize> {
    first: [T; FIRST],
    /// The free ones among the first slots, the one freed last at the end.
    free_first: [u16; FIRST],
    free_first_len: u32,
    /// The slots from `FIRST` up. `None` iff the chunk was given back.
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    /// For each chunk.
    marks: Vec<ChunkMark>,
    /// First in the list of chunks that have a free slot.
    partial: u32,
    /// First in the list of chunks that were given back.
    absent: u32,
    /// A chunk that was kept when it became empty, or `NIL`.
    spare_chunk: u32,
    /// Where [`ChunkedTable::move_slot_down`] looks next for a chunk with a free slot.
    cursor: u32,
    live: u32,
    /// Slots in blocks that exist.
    slots: u32,
    /// Slots that may be in use.
    max: u32,
}

/// What is known of a chunk.
#[derive(Clone, Copy)]
struct ChunkMark {
    /// A bit for each free slot. A chunk that was given back has none.
    free: u64,
    /// Neighbours in the list of chunks that the chunk is in, if it is in one.
    prev: u32,
    next: u32,
}

impl<T: TableSlot, const FIRST: usize> ChunkedTable<T, FIRST> {
    /// A table that will hold at most `max` slots.
    pub(super) fn new(max: u32) -> Self {
        ChunkedTable {
            first: [T::EMPTY; FIRST],
            free_first: std::array::from_fn(|i| (FIRST - 1 - i) as u16),
            free_first_len: FIRST as u32,
            chunks: Vec::new(),
            marks: Vec::new(),
            partial: NIL,
            absent: NIL,
            spare_chunk: NIL,
            cursor: 0,
            live: 0,
            slots: FIRST as u32,
            max: max.min(MAX_SLOTS),
        }
    }

    /// Slots in use.
    #[inline]
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Slots in blocks that exist, in use or not.
    #[inline]
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Slots that can still be put to use.
    #[inline]
    pub(super) fn remaining(&self) -> u32 {
        // The user of the table asks before it inserts; should it forget to, it is not worth a
        // crash.
        self.max.saturating_sub(self.live)
    }

    /// Bytes on the heap, without the first block.
    pub(super) fn bytes(&self) -> usize {
        (self.slots as usize - FIRST) * size_of::<T>()
            + self.chunks.capacity() * size_of::<Option<Box<[T; CHUNK]>>>()
            + self.marks.capacity() * size_of::<ChunkMark>()
    }

    /// Puts `value` into a free slot and returns its name.
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if self.free_first_len == 0 {
            return self.insert_further(value);
        }
        steps::count(1);
        self.live += 1;
        self.free_first_len -= 1;
        let id = self.free_first[self.free_first_len as usize];
        self.first[id as usize] = value;
        u32::from(id)
    }

    /// Puts `value` into a free slot from `FIRST` up.
    #[inline]
    fn insert_further(&mut self, value: T) -> u32 {
        if self.partial == NIL {
            self.add_chunk();
        }
        self.insert_into(self.partial, value)
    }

    /// Puts `value` into a free slot of `chunk`, which has one.
    #[inline]
    fn insert_into(&mut self, chunk: u32, value: T) -> u32 {
        let mark = &mut self.marks[chunk as usize];
        let id = FIRST as u32 + (chunk << SHIFT) + mark.free.trailing_zeros();
        mark.free &= mark.free - 1;
        if mark.free == 0 {
            self.unlist_partial(chunk);
        }
        steps::count(1);
        *self.further_mut(id) = value;
        self.live += 1;
        id
    }

    /// Frees the slot `id`, which must be in use, and returns what it held.
    #[inline(always)]
    pub(super) fn remove(&mut self, id: u32) -> T {
        self.live -= 1;
        if id as usize >= FIRST {
            return self.remove_further(id);
        }
        steps::count(1);
        self.free_first[self.free_first_len as usize] = id as u16;
        self.free_first_len += 1;
        self.first[id as usize]
    }

    /// Frees a slot from `FIRST` up, but for counting.
    #[inline]
    fn remove_further(&mut self, id: u32) -> T {
        steps::count(1);
        let value = *self.further(id);
        let chunk = (id - FIRST as u32) >> SHIFT;
        let mark = &mut self.marks[chunk as usize];
        let was_full = mark.free == 0;
        mark.free |= 1 << (id % CHUNK as u32);
        if was_full {
            self.list_partial(chunk);
        } else if mark.free == !0 {
            self.emptied(chunk);
        }
        value
    }

    /// Moves one slot out of the last chunk into a slot before it, and returns its old name and its
    /// new one. `None`: there is no such chunk, or no free slot was found before it. For slots
    /// that nothing outside names. O(1).
    pub(super) fn move_slot_down(&mut self) -> Option<(u32, u32)> {
        let Some(last) = self.marks.len().checked_sub(1) else { return None };
        if matches!(self.chunks.last(), Some(None)) {
            self.trim();
            return None;
        }
        let used = !self.marks[last].free;
        if used == 0 {
            self.give_back(last as u32);
            return None;
        }
        let old = FIRST as u32 + ((last as u32) << SHIFT) + used.trailing_zeros();
        let value = *self.further(old);
        let new = match self.free_first_len {
            0 => {
                let chunk = self.free_chunk_before(last)?;
                self.insert_into(chunk, value)
            }
            _ => self.insert(value),
        };
        self.remove(old);
        Some((old, new))
    }

    /// A chunk before `last` with a free slot, if one is found soon.
    fn free_chunk_before(&mut self, last: usize) -> Option<u32> {
        for _ in 0..TRIM.min(last) {
            if self.cursor as usize >= last {
                self.cursor = 0;
            }
            if self.marks[self.cursor as usize].free != 0 {
                return Some(self.cursor);
            }
            self.cursor += 1;
        }
        None
    }

    /// Whether the slot exists, in use or not.
    pub(super) fn contains(&self, id: u32) -> bool {
        let id = id as usize;
        id < FIRST || self.chunks.get((id - FIRST) >> SHIFT).is_some_and(Option::is_some)
    }

    #[cold]
    fn list_partial(&mut self, chunk: u32) {
        let next = std::mem::replace(&mut self.partial, chunk);
        self.link(chunk, next);
    }

    /// Makes `chunk` the first of the list that begins with `next`.
    fn link(&mut self, chunk: u32, next: u32) {
        let mark = &mut self.marks[chunk as usize];
        (mark.prev, mark.next) = (NIL, next);
        if next != NIL {
            self.marks[next as usize].prev = chunk;
        }
    }

    #[cold]
    fn unlist_partial(&mut self, chunk: u32) {
        let first = self.unlink(chunk, self.partial);
        self.partial = first;
    }

    /// Takes `chunk` out of the list that begins with `first`; returns what it begins with then.
    fn unlink(&mut self, chunk: u32, first: u32) -> u32 {
        let ChunkMark { prev, next, .. } = self.marks[chunk as usize];
        if next != NIL {
            self.marks[next as usize].prev = prev;
        }
        if prev == NIL {
            return next;
        }
        self.marks[prev as usize].next = next;
        first
    }

    /// Nothing is in use in a chunk any more: it is given back, or kept for the next slot.
    #[cold]
    fn emptied(&mut self, chunk: u32) {
        let spare_chunk = std::mem::replace(&mut self.spare_chunk, chunk);
        if spare_chunk != NIL && spare_chunk != chunk && self.marks[spare_chunk as usize].free == !0
        {
            self.spare_chunk = spare_chunk.min(chunk);
            self.give_back(spare_chunk.max(chunk));
        }
    }

    /// Gives back a chunk in which nothing is in use.
    fn give_back(&mut self, chunk: u32) {
        self.unlist_partial(chunk);
        self.chunks[chunk as usize] = None;
        self.slots -= CHUNK as u32;
        self.marks[chunk as usize].free = 0;
        if self.spare_chunk == chunk {
            self.spare_chunk = NIL;
        }
        let absent = std::mem::replace(&mut self.absent, chunk);
        self.link(chunk, absent);
        self.trim();
    }

    /// Shortens the vectors by chunks at their end that were given back.
    #[cold]
    fn trim(&mut self) {
        let last = self.spare_chunk != NIL && self.marks[self.spare_chunk as usize].free == !0;
        if self.slots as usize == FIRST + CHUNK && last {
            self.unlist_partial(self.spare_chunk);
            self.slots = FIRST as u32;
            (self.absent, self.spare_chunk) = (NIL, NIL);
            self.chunks.clear();
            self.marks.clear();
        }
        for _ in 0..TRIM {
            let Some(None) = self.chunks.last() else { break };
            let chunk = self.marks.len() as u32 - 1;
            let absent = self.unlink(chunk, self.absent);
            self.absent = absent;
            self.chunks.pop();
            self.marks.pop();
        }
        let len = self.chunks.len();
        if self.chunks.capacity() > 2 * len + TRIM {
            steps::count(3 * len);
            self.chunks.shrink_to(len + len / 8);
            self.marks.shrink_to(len + len / 8);
        }
    }

    #[cold]
    fn add_chunk(&mut self) {
        let chunk = match self.absent {
            NIL => {
                let len = self.chunks.len();
                if len == self.chunks.capacity() {
                    // In steps of an eighth: slack costs more than growing does.
                    let more = (len / 8).max(16);
                    steps::count(3 * len);
                    self.chunks.reserve_exact(more);
                    self.marks.reserve_exact(more);
                }
                self.chunks.push(None);
                self.marks.push(ChunkMark { free: 0, prev: NIL, next: NIL });
                self.marks.len() as u32 - 1
            }
            absent => {
                self.absent = self.unlink(absent, absent);
                absent
            }
        };
        self.chunks[chunk as usize] = Some(Box::new([T::EMPTY; CHUNK]));
        self.marks[chunk as usize].free = !0;
        self.list_partial(chunk);
        self.slots += CHUNK as u32;
    }

    /// A slot from `FIRST` up.
    #[inline]
    fn further(&self, id: u32) -> &T {
        match &self.chunks[(id as usize - FIRST) >> SHIFT] {
            Some(chunk) => &chunk[id as usize % CHUNK],
            None => absent(id),
        }
    }

    /// A slot from `FIRST` up.
    #[inline]
    fn further_mut(&mut self, id: u32) -> &mut T {
        match &mut self.chunks[(id as usize - FIRST) >> SHIFT] {
            Some(chunk) => &mut chunk[id as usize % CHUNK],
            None => absent(id),
        }
    }
}

impl<T: TableSlot, const FIRST: usize> Index<u32> for ChunkedTable<T, FIRST> {
    type Output = T;

    #[inline]
    fn index(&self, id: u32) -> &T {
        steps::count(1);
        match self.first.get(id as usize) {
            Some(slot) => slot,
            None => self.further(id),
        }
    }
}

impl<T: TableSlot, const FIRST: usize> IndexMut<u32> for ChunkedTable<T, FIRST> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        steps::count(1);
        if (id as usize) < FIRST { &mut self.first[id as usize] } else { self.further_mut(id) }
    }
}

/// A name without a slot: the layer above broke its books.
#[cold]
fn absent(id: u32) -> ! {
    panic!("slot {id} is not in the table");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as a node.
    #[derive(Clone, Copy, PartialEq, Debug)]
    #[repr(align(16))]
    struct Number(u32);

    impl TableSlot for Number {
        const EMPTY: Self = Number(0);
    }

    #[test]
    fn names_come_in_order_and_stay() {
        let mut table = ChunkedTable::<_, 256>::new(MAX_SLOTS);
        let ids: Vec<u32> = (0..1000).map(|n| table.insert(Number(n))).collect();
        assert_eq!(ids, (0..1000).collect::<Vec<_>>());
        for id in (0..1000).step_by(2) {
            assert_eq!(table.remove(id), Number(id));
        }
        for id in (1..1000).step_by(2) {
            assert_eq!(table[id], Number(id));
        }
        assert_eq!(table.live(), 500);
    }

    #[test]
    fn follows_the_live_set_down() {
        let mut table = ChunkedTable::<_, 256>::new(MAX_SLOTS);
        for n in 0..100_000 {
            table.insert(Number(n));
        }
        let full = table.bytes();
        for id in 0..100_000 {
            table.remove(id);
        }
        assert_eq!(table.live(), 0);
        assert!(table.bytes() < full / 30, "{} of {full} bytes are left", table.bytes());
        // And up again, over names that were used before.
        for n in 0..100_000 {
            let id = table.insert(Number(n));
            assert!(id < 100_000 + CHUNK as u32);
        }
    }

    #[test]
    fn survivors_keep_their_chunks_only() {
        let mut table = ChunkedTable::<_, 256>::new(MAX_SLOTS);
        for n in 0..100_000 {
            table.insert(Number(n));
        }
        let full = table.bytes();
        for id in (0..100_000).filter(|id| id % 5_000 != 7) {
            table.remove(id);
        }
        for id in (7..100_000).step_by(5_000) {
            assert_eq!(table[id], Number(id));
        }
        assert!(table.bytes() < full / 25, "{} of {full} bytes are left", table.bytes());
    }

    /// Slots that nothing names move together, and give back all but as much as they need.
    #[test]
    fn the_last_slots_move_down() {
        let mut table = ChunkedTable::<_, 64>::new(MAX_SLOTS);
        for n in 0..10_000 {
            table.insert(Number(n));
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
}
