//! *Table*: slots named by a `u32` that stays good while the slot is in use.
//!
//! Slots stand in chunks of [`CHUNK`]; a chunk is one heap block, so a table never moves a slot while it grows. Free
//! slots are chained through themselves, last in first out. When three quarters of the slots have become free, a *sweep*
//! gives back the chunks in which nothing is in use; the next one comes when the slots in use have halved again. So the
//! table follows the live set both ways. Every operation is O(1), a sweep amortized over the removals before it.
//!
//! New slots come in index order out of a fresh chunk: ranges that were cut one after the other lie side
//! by side in memory, so that looking at a range's neighbours mostly stays in one cache line.

use std::ops::{Index, IndexMut};

/// The `u32` that names no slot.
pub(super) const NIL: u32 = u32::MAX;

const SHIFT: u32 = 8;
/// Slots a chunk.
pub(super) const CHUNK: usize = 1 << SHIFT;

/// Slots below which no chunk is given back.
const WORTHWHILE: u32 = 4 * CHUNK as u32;

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
    /// `None` iff the chunk was given back; `in_use` is 0 then.
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    /// For each chunk, slots in use.
    in_use: Vec<u32>,
    /// First free slot.
    free: u32,
    live: u32,
    /// Slots in chunks that exist.
    room: u32,
    /// A sweep is due when fewer slots than this are in use.
    sweep_below: u32,
}

impl<T: Slot> Table<T> {
    pub(super) const fn new() -> Self {
        Table { chunks: Vec::new(), in_use: Vec::new(), free: NIL, live: 0, room: 0, sweep_below: 0 }
    }

    /// Slots in use.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Whether `more` slots can still be named.
    pub(super) fn has_names_for(&self, more: u32) -> bool {
        // The last chunk is never made, so that no slot is called NIL.
        self.live <= NIL - 2 * CHUNK as u32 - more
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.room as usize * size_of::<T>()
            + self.chunks.capacity() * size_of::<Option<Box<[T; CHUNK]>>>()
            + self.in_use.capacity() * size_of::<u32>()
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
        self.in_use[(id >> SHIFT) as usize] += 1;
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
        self.in_use[(id >> SHIFT) as usize] -= 1;
        self.live -= 1;
        if self.live < self.sweep_below {
            self.sweep();
        }
        value
    }

    /// Whether the slot exists, in use or not.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.chunks.get((id >> SHIFT) as usize).is_some_and(Option::is_some)
    }

    /// Gives back the chunks in which nothing is in use, and takes their slots out of the chain.
    /// O(slots).
    #[cold]
    fn sweep(&mut self) {
        let mut chain = self.free;
        self.free = NIL;
        let mut kept = NIL;
        while chain != NIL {
            let id = chain;
            chain = self[id].link();
            if self.in_use[(id >> SHIFT) as usize] > 0 {
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
        self.sweep_below = if self.room <= WORTHWHILE { 0 } else { self.live / 2 };
    }

    #[cold]
    fn add_chunk(&mut self) {
        let gone = if self.room as usize == self.chunks.len() * CHUNK {
            None
        } else {
            self.chunks.iter().position(Option::is_none)
        };
        let chunk = gone.unwrap_or(self.chunks.len());
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
        let first = (chunk << SHIFT) as u32;
        let mut slots = Box::new([T::EMPTY; CHUNK]);
        for (slot, link) in slots.iter_mut().zip(first + 1..) {
            slot.set_link(link);
        }
        slots[CHUNK - 1].set_link(self.free);
        self.free = first;
        self.chunks[chunk] = Some(slots);
        self.room += CHUNK as u32;
        self.sweep_below = if self.room <= WORTHWHILE { 0 } else { self.room / 4 };
    }
}
impl<T: Slot> Index<u32> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: u32) -> &T {
        match &self.chunks[(id >> SHIFT) as usize] {
            Some(chunk) => &chunk[id as usize % CHUNK],
            None => gone(id),
        }
    }
}

impl<T: Slot> IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        match &mut self.chunks[(id >> SHIFT) as usize] {
            Some(chunk) => &mut chunk[id as usize % CHUNK],
            None => gone(id),
        }
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

    #[derive(Clone, Copy, PartialEq, Debug)]
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
        let mut table = Table::new();
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
        let mut table = Table::new();
        for n in 0..100_000 {
            table.insert(Number(n));
        }
        let full = table.bytes();
        for id in 0..100_000 {
            table.remove(id);
        }
        assert_eq!(table.live(), 0);
        assert!(table.bytes() < full / 25, "{} of {full} bytes are left", table.bytes());
        // And up again, over names that were used before.
        for n in 0..100_000 {
            let id = table.insert(Number(n));
            assert!(id < 100_000 + 2 * CHUNK as u32);
        }
    }

    #[test]
    fn survivors_keep_their_chunks_only() {
        let mut table = Table::new();
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
        assert!(table.bytes() < full / 10, "{} of {full} bytes are left", table.bytes());
    }
}
