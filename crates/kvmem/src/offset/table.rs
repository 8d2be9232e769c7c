//! *Table*: slots named by a `u32` that stays good while the slot is in use.
//!
//! Slots stand in blocks, so a table never moves a slot while it grows: [`FIRST`] of them in a block that lives as long as
//! the table, which spares small spaces one step of every look-up, the rest in chunks of [`CHUNK`]. Free slots are
//! chained through themselves, last in first out. When three quarters of the slots have become free, a *sweep* gives back
//! the chunks in which nothing is in use; the next one comes when the slots in use have halved again. So the table
//! follows the live set both ways; chunks are short so that few survivors keep little. Every operation is O(1), a
//! sweep amortized over the removals before it.
//!
//! New slots come in index order out of a fresh chunk: ranges that were cut one after the other lie side
//! by side in memory, so that looking at a range's neighbours mostly stays in one cache line.

use std::ops::{Index, IndexMut};

/// The `u32` that names no slot.
pub(super) const NIL: u32 = u32::MAX;

/// Slots of the first block.
const FIRST: usize = 256;
const SHIFT: u32 = 6;
/// Slots of each chunk.
const CHUNK: usize = 1 << SHIFT;
/// Slots a table can hold: the last chunk is never made, so that no slot is called [`NIL`].
pub(super) const MOST: u32 = NIL - 2 * CHUNK as u32;
/// Chunks that are not worth a sweep.
const WORTHWHILE: usize = 12;

/// What a table can hold: plain data with room for one link while it is free.
pub(super) trait Slot: Copy {
    /// A slot that was never used.
    const EMPTY: Self;
    /// The link stored by [`Slot::set_link`].
    fn link(&self) -> u32;
    /// Stores a link; overwrites whatever it must, for the slot is free.
    fn set_link(&mut self, link: u32);
}

pub(super) struct Table<T> {
    /// The slots below [`FIRST`].
    first: [T; FIRST],
    /// The slots from [`FIRST`] up. `None` iff the chunk was given back; `in_use` is 0 then.
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    /// For each chunk, slots in use.
    in_use: Vec<u8>,
    /// No chunk below this one was given back.
    none_gone_below: usize,
    /// First free slot.
    free: u32,
    live: u32,
    /// Slots in blocks that exist.
    room: u32,
    /// A sweep is due when fewer slots than this are in use.
    sweep_below: u32,
    /// Slots that may be in use.
    most: u32,
}

/// The chunk of a slot from [`FIRST`] up.
#[inline]
fn chunk_of(id: u32) -> usize {
    (id as usize - FIRST) >> SHIFT
}

impl<T: Slot> Table<T> {
    /// A table that will hold at most `most` slots.
    pub(super) fn new(most: u32) -> Self {
        let mut first = [T::EMPTY; FIRST];
        chain(&mut first, 0, NIL);
        Table {
            first,
            chunks: Vec::new(),
            in_use: Vec::new(),
            none_gone_below: 0,
            free: 0,
            live: 0,
            room: FIRST as u32,
            sweep_below: 0,
            most: most.min(MOST),
        }
    }

    /// Slots in use.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Slots that can still be put to use.
    #[inline]
    pub(super) fn left(&self) -> u32 {
        // The user of the table asks before it inserts; should it forget to, it is not worth a crash.
        self.most.saturating_sub(self.live)
    }

    /// Bytes on the heap, without the first block.
    pub(super) fn bytes(&self) -> usize {
        (self.room as usize - FIRST) * size_of::<T>()
            + self.chunks.capacity() * size_of::<Option<Box<[T; CHUNK]>>>()
            + self.in_use.capacity()
    }

    /// Puts `value` into a free slot and returns its name.
    #[inline]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if self.free == NIL {
            self.add_chunk();
        }
        let id = self.free;
        let slot = &mut self[id];
        let next = slot.link();
        *slot = value;
        self.free = next;
        if id as usize >= FIRST {
            self.in_use[chunk_of(id)] += 1;
        }
        self.live += 1;
        id
    }

    /// Frees the slot `id`, which must be in use, and returns what it held.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> T {
        let free = self.free;
        let slot = &mut self[id];
        let value = *slot;
        slot.set_link(free);
        self.free = id;
        if id as usize >= FIRST {
            self.in_use[chunk_of(id)] -= 1;
        }
        self.live -= 1;
        if self.live < self.sweep_below {
            self.sweep();
        }
        value
    }

    /// Whether the slot exists, in use or not.
    pub(super) fn contains(&self, id: u32) -> bool {
        (id as usize) < FIRST || self.chunks.get(chunk_of(id)).is_some_and(Option::is_some)
    }

    /// Gives back the chunks in which nothing is in use, and takes their slots out of the chain.
    /// O(slots).
    #[cold]
    fn sweep(&mut self) {
        let mut rest = self.free;
        self.free = NIL;
        let mut kept = NIL;
        while rest != NIL {
            let id = rest;
            rest = self[id].link();
            if (id as usize) < FIRST || self.in_use[chunk_of(id)] > 0 {
                match kept {
                    NIL => self.free = id,
                    before => self[before].set_link(id),
                }
                kept = id;
            }
        }
        if kept != NIL {
            self[kept].set_link(NIL);
        }
        for (chunk, &in_use) in self.chunks.iter_mut().zip(&self.in_use) {
            if in_use == 0 && chunk.take().is_some() {
                self.room -= CHUNK as u32;
            }
        }
        let needed = self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.chunks.truncate(needed);
        self.in_use.truncate(needed);
        self.chunks.shrink_to(needed + needed / 8);
        self.in_use.shrink_to(needed + needed / 8);
        self.none_gone_below = 0;
        self.sweep_below = if self.chunks.len() <= WORTHWHILE { 0 } else { self.live / 2 + 1 };
    }

    #[cold]
    fn add_chunk(&mut self) {
        // Every chunk is passed by once between two sweeps.
        let mut chunk = self.none_gone_below;
        while self.chunks.get(chunk).is_some_and(Option::is_some) {
            chunk += 1;
        }
        self.none_gone_below = chunk + 1;
        if chunk == self.chunks.len() {
            if chunk == self.chunks.capacity() {
                // In steps of an eighth: slack costs more than growing does.
                let more = (chunk / 8).max(16);
                self.chunks.reserve_exact(more);
                self.in_use.reserve_exact(more);
            }
            self.chunks.push(None);
            self.in_use.push(0);
        }
        let start = (FIRST + (chunk << SHIFT)) as u32;
        let mut slots = Box::new([T::EMPTY; CHUNK]);
        chain(&mut *slots, start, self.free);
        self.free = start;
        self.chunks[chunk] = Some(slots);
        self.room += CHUNK as u32;
        // A sweep reads all slots and all chunks; the removals up to it have to be worth that.
        if self.chunks.len() > WORTHWHILE && self.room as usize >= self.chunks.len() {
            self.sweep_below = self.room / 4;
        }
    }

    /// A slot from [`FIRST`] up.
    #[inline]
    fn further(&self, id: u32) -> &T {
        match &self.chunks[chunk_of(id)] {
            Some(chunk) => &chunk[id as usize % CHUNK],
            None => gone(id),
        }
    }

    /// A slot from [`FIRST`] up.
    #[inline]
    fn further_mut(&mut self, id: u32) -> &mut T {
        match &mut self.chunks[chunk_of(id)] {
            Some(chunk) => &mut chunk[id as usize % CHUNK],
            None => gone(id),
        }
    }
}

/// Chains the slots of a new block, which are named from `start` on, in order and with `then` behind them.
fn chain<T: Slot>(slots: &mut [T], start: u32, then: u32) {
    let last = slots.len() - 1;
    for (slot, link) in slots.iter_mut().zip(start + 1..) {
        slot.set_link(link);
    }
    slots[last].set_link(then);
}

impl<T: Slot> Index<u32> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: u32) -> &T {
        match self.first.get(id as usize) {
            Some(slot) => slot,
            None => self.further(id),
        }
    }
}

impl<T: Slot> IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        if (id as usize) < FIRST { &mut self.first[id as usize] } else { self.further_mut(id) }
    }
}

/// A name without a slot: the layer above broke its books.
#[cold]
fn gone(id: u32) -> ! {
    panic!("slot {id} is not in the table");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as a node.
    #[derive(Clone, Copy, PartialEq, Debug)]
    #[repr(align(16))]
    struct Number(u32);

    impl Slot for Number {
        const EMPTY: Self = Number(0);
        fn link(&self) -> u32 {
            self.0
        }
        fn set_link(&mut self, link: u32) {
            self.0 = link;
        }
    }

    #[test]
    fn names_come_in_order_and_stay() {
        let mut table = Table::new(MOST);
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
        let mut table = Table::new(MOST);
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
        let mut table = Table::new(MOST);
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
        assert!(table.bytes() < full / 30, "{} of {full} bytes are left", table.bytes());
    }
}
