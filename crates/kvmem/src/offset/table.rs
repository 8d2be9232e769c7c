//! *Table*: slots named by a `u32` that stays good while the slot is in use.
//!
//! Slots stand in chunks of [`CHUNK`]; a chunk is one heap block, made when it is first needed and given
//! back when its last slot is freed, so the table follows the live set both ways and never moves a slot.
//! Free slots of a chunk are chained through the slots themselves; chunks with a free slot are chained
//! through [`ChunkBook`]. Every operation is O(1).
//!
//! New slots come in index order out of a fresh chunk: ranges that were cut one after the other lie side
//! by side in memory, so that looking at a range's neighbours mostly stays in one cache line.

use std::ops::{Index, IndexMut};

/// The `u32` that names no slot.
pub(super) const NIL: u32 = u32::MAX;

const SHIFT: u32 = 8;
/// Slots a chunk.
pub(super) const CHUNK: usize = 1 << SHIFT;

/// What a table can hold: plain data with room for one link while it is free.
pub(super) trait Slot: Copy {
    /// A slot that was never used.
    const EMPTY: Self;
    /// The link stored by [`Slot::set_link`].
    fn link(&self) -> u32;
    /// Stores a link; overwrites whatever it must, for the slot is free.
    fn set_link(&mut self, link: u32);
}

/// What is known of a chunk without touching it.
#[derive(Clone, Copy)]
struct ChunkBook {
    /// First free slot of the chunk, as an index within the table; `NIL` if none.
    free: u32,
    /// Slots in use.
    live: u32,
    /// Neighbours in the list of chunks that have a free slot.
    prev: u32,
    next: u32,
}

pub(super) struct Table<T> {
    /// `chunks[i]` is `None` iff `books[i].live == 0` and the chunk is not the spare one.
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    books: Vec<ChunkBook>,
    /// First chunk of those that exist and have a free slot.
    open: u32,
    /// One empty chunk that is kept, so that a table at a chunk's edge does not thrash.
    spare: u32,
    /// Chunk numbers whose chunk was given back, to be used again before new ones.
    gone: Vec<u32>,
    live: u32,
}

impl<T: Slot> Table<T> {
    pub(super) const fn new() -> Self {
        Table { chunks: Vec::new(), books: Vec::new(), open: NIL, spare: NIL, gone: Vec::new(), live: 0 }
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
        let chunks = self.chunks.iter().flatten().count();
        chunks * size_of::<[T; CHUNK]>()
            + self.chunks.capacity() * size_of::<Option<Box<[T; CHUNK]>>>()
            + self.books.capacity() * size_of::<ChunkBook>()
            + self.gone.capacity() * size_of::<u32>()
    }

    /// Puts `value` into a free slot and returns its name.
    #[inline]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if self.open == NIL {
            self.add_chunk();
        }
        let chunk = self.open;
        let book = &mut self.books[chunk as usize];
        let id = book.free;
        let slot = Self::slot_mut(&mut self.chunks, id);
        book.free = slot.link();
        book.live += 1;
        *slot = value;
        self.live += 1;
        if chunk == self.spare {
            self.spare = NIL;
        }
        if book.free == NIL {
            self.unlink(chunk);
        }
        id
    }

    /// Frees the slot `id`, which must be in use, and returns what it held.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> T {
        let chunk = id >> SHIFT;
        let book = &mut self.books[chunk as usize];
        let slot = Self::slot_mut(&mut self.chunks, id);
        let value = *slot;
        slot.set_link(book.free);
        let was_full = book.free == NIL;
        book.free = id;
        book.live -= 1;
        self.live -= 1;
        let empty = book.live == 0;
        if was_full {
            self.link(chunk);
        }
        if empty {
            self.retire(chunk);
        }
        value
    }

    /// Names of all slots that exist, used or not, for checks.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.chunks.get((id >> SHIFT) as usize).is_some_and(Option::is_some)
    }

    #[inline]
    fn slot_mut(chunks: &mut [Option<Box<[T; CHUNK]>>], id: u32) -> &mut T {
        match &mut chunks[(id >> SHIFT) as usize] {
            Some(chunk) => &mut chunk[id as usize % CHUNK],
            None => gone(id),
        }
    }

    /// Keeps one empty chunk; gives others back.
    #[cold]
    fn retire(&mut self, chunk: u32) {
        if self.spare == NIL {
            self.spare = chunk;
            return;
        }
        self.unlink(chunk);
        self.chunks[chunk as usize] = None;
        self.gone.push(chunk);
        if self.live == 0 || self.gone.len() * 2 > self.chunks.len() {
            self.trim();
        }
    }

    /// Drops trailing chunk numbers that are not in use, and room in the vectors that is not needed.
    fn trim(&mut self) {
        let kept = self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.chunks.truncate(kept);
        self.books.truncate(kept);
        self.gone.retain(|&chunk| (chunk as usize) < kept);
        self.chunks.shrink_to(kept * 2);
        self.books.shrink_to(kept * 2);
        self.gone.shrink_to(self.gone.len() * 2);
    }

    #[cold]
    fn add_chunk(&mut self) {
        let chunk = match self.gone.pop() {
            Some(chunk) => chunk,
            None => {
                let chunk = self.chunks.len() as u32;
                self.chunks.push(None);
                self.books.push(ChunkBook { free: NIL, live: 0, prev: NIL, next: NIL });
                chunk
            }
        };
        let first = chunk << SHIFT;
        let mut slots = Box::new([T::EMPTY; CHUNK]);
        for (slot, link) in slots.iter_mut().zip(first + 1..) {
            slot.set_link(link);
        }
        slots[CHUNK - 1].set_link(NIL);
        self.chunks[chunk as usize] = Some(slots);
        self.books[chunk as usize] = ChunkBook { free: first, live: 0, prev: NIL, next: NIL };
        self.link(chunk);
    }

    fn link(&mut self, chunk: u32) {
        let next = self.open;
        let book = &mut self.books[chunk as usize];
        (book.prev, book.next) = (NIL, next);
        if next != NIL {
            self.books[next as usize].prev = chunk;
        }
        self.open = chunk;
    }

    fn unlink(&mut self, chunk: u32) {
        let ChunkBook { prev, next, .. } = self.books[chunk as usize];
        match prev {
            NIL => self.open = next,
            _ => self.books[prev as usize].next = next,
        }
        if next != NIL {
            self.books[next as usize].prev = prev;
        }
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
        Self::slot_mut(&mut self.chunks, id)
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
        assert!(table.bytes() < full / 50, "{} of {full} bytes are left", table.bytes());
        // And up again, over names that were used before.
        for n in 0..100_000 {
            let id = table.insert(Number(n));
            assert!(id < 100_000 + 2 * CHUNK as u32);
        }
    }

    #[test]
    fn an_edge_does_not_thrash() {
        let mut table = Table::new();
        for n in 0..CHUNK as u32 {
            table.insert(Number(n));
        }
        let id = table.insert(Number(7));
        table.remove(id);
        assert!(table.contains(id), "the one empty chunk is kept");
    }
}
