//! *Chunked table*: slots identified by a `u32` that stays valid while the slot is in use.
//!
//! Slots live in chunks of `CHUNK`, so a growing table never moves a slot. One word per chunk says
//! which of its slots are free. Chunks with a free slot form a list. A chunk without used slots is
//! freed at once, except that one is kept for the next slot. The table therefore follows the live
//! set in both directions. Chunks are short, so a few survivors hold little memory.
//!
//! A stack in front of the words holds the slots freed last, at most [`RECENT`].
//! They are used next, and count as used in the words: in a space whose ranges come and go, most
//! calls change the stack alone. Slots move between the stack and the words several at a time.
//!
//! Every operation takes O(1), except that three vectors with a word per chunk grow and shrink by
//! copying. A call copies at most one of them: a vector grows before it is full, while the others
//! still have room. A copy touches pages that were never used, which takes far longer than reading
//! the words.
//!
//! A table of up to [`FLAT_CHUNKS`] chunks is *flat*: one vector holds all slots. An access then
//! reads no address of a chunk, which takes a seventh of the instructions of an exchange of mixed
//! sizes in a small space. When a table needs more, all its slots move into chunks, and it stays in
//! that form. No branch of an access depends on the index, which would be a coin flip if only a
//! part of the table were flat. A flat table becomes shorter from its end.
//!
//! New slots come in index order out of a fresh chunk. Ranges that were cut one after the other are
//! therefore adjacent in memory, and a look at a range's neighbours mostly stays in one cache line.

use std::ops::{Index, IndexMut};

use crate::offset::steps;

/// The `u32` that identifies no slot.
pub(crate) const NIL: u32 = u32::MAX;

/// Slots of each chunk, unless a table says otherwise: one per bit of a word. Of shorter chunks a
/// large table has too many for the vector of their addresses to stay in a first-level cache.
pub(super) const CHUNK_SLOTS: usize = 128;
/// Upper bound of the slots in a table: the last chunk is never created, so no slot is called
/// [`NIL`].
pub(super) const MAX_SLOTS: u32 = NIL - 2 * CHUNK_SLOTS as u32;
/// Vectors with a word per chunk.
const VECTORS: usize = 3;
/// Chunks that one call examines to shorten the vectors, or to find a free slot.
const TRIM: usize = 256;
/// Chunks of a table that is nearly empty.
const FEW_CHUNKS: usize = 4;
/// Chunks of a flat table. Moving them out copies 32 KiB of nodes or 64 KiB of holes, which takes
/// some microseconds.
pub(super) const FLAT_CHUNKS: usize = 16;
/// Length of the stack of slots freed last.
const RECENT: usize = 128;

/// Plain data that a table can hold.
pub(super) trait TableSlot: Copy {
    /// A slot that was never used.
    const EMPTY: Self;
}

/// Slots in chunks of `CHUNK`, a power of two up to 128.
pub(super) struct ChunkedTable<T, const CHUNK: usize = CHUNK_SLOTS> {
    /// Free slots that are used next, the first `recent_len` of these.
    recent: [u32; RECENT],
    recent_len: u32,
    /// The slots of a flat table. Otherwise empty.
    flat: Vec<T>,
    /// The slots of any other table. `None` iff the chunk was freed.
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    /// For each chunk, a bit for each free slot that is not in the stack; 0 if the chunk was freed.
    free: Vec<u128>,
    /// For each chunk, its neighbours in the list that contains it, if one does.
    links: Vec<ChunkLinks>,
    /// First in the list of chunks that have a free slot.
    partial: u32,
    /// First in the list of chunks that were freed.
    absent: u32,
    /// An empty chunk kept for the next slot, or `NIL`.
    spare_chunk: u32,
    /// Where [`ChunkedTable::move_slot_down`] continues to search for a chunk with a free slot.
    cursor: u32,
    live: u32,
    /// Slots in blocks that exist, used or free.
    slots: u32,
    /// Upper bound of the slots in use.
    max: u32,
}

/// The neighbours of a chunk in a list.
#[derive(Clone, Copy)]
struct ChunkLinks {
    prev: u32,
    next: u32,
}

impl<T: TableSlot, const CHUNK: usize> ChunkedTable<T, CHUNK> {
    const SHIFT: u32 = {
        assert!(CHUNK.is_power_of_two() && CHUNK <= 128);
        CHUNK.ilog2()
    };
    /// The bits of a chunk without used slots.
    const ALL_FREE: u128 = !0 >> (128 - CHUNK);
    /// Upper bound of the slots in the stack, and of those that enter it from the words at once.
    const STACK: usize = if 2 * CHUNK < RECENT { 2 * CHUNK } else { RECENT };
    const REFILL: u32 = (Self::STACK as u32).div_ceil(2);

    /// Creates a table for at most `max` slots.
    pub(super) fn new(max: u32) -> Self {
        ChunkedTable {
            recent: [NIL; RECENT],
            recent_len: 0,
            flat: Vec::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            links: Vec::new(),
            partial: NIL,
            absent: NIL,
            spare_chunk: NIL,
            cursor: 0,
            live: 0,
            slots: 0,
            max: max.min(MAX_SLOTS),
        }
    }

    /// Creates a table for at most `max` slots in which these slots are in use. O(greatest index).
    pub(super) fn with_slots(max: u32, slots: impl IntoIterator<Item = (u32, T)>) -> Self {
        let mut table = Self::new(max);
        for (id, value) in slots {
            let chunk = (id >> Self::SHIFT) as usize;
            table.create_through(chunk);
            table.free[chunk] &= !(1 << (id % CHUNK as u32));
            table[id] = value;
            table.live += 1;
        }
        for chunk in (0..table.free.len() as u32).rev() {
            if table.chunks[chunk as usize].is_none() {
                let absent = std::mem::replace(&mut table.absent, chunk);
                table.link(chunk, absent);
            } else if table.free[chunk as usize] != 0 {
                table.list_partial(chunk);
            }
        }
        table
    }

    /// Creates the chunk `chunk`, in no list, and the places of all chunks before it.
    fn create_through(&mut self, chunk: usize) {
        while self.free.len() <= chunk {
            self.reserve();
            self.chunks.push(None);
            self.free.push(0);
            self.links.push(ChunkLinks { prev: NIL, next: NIL });
        }
        if self.chunks[chunk].is_none() {
            self.chunks[chunk] = Self::empty_chunk();
            self.free[chunk] = Self::ALL_FREE;
            self.slots += CHUNK as u32;
        }
    }

    /// Returns whether all slots lie in one vector.
    #[inline(always)]
    pub(super) fn is_flat(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the number of slots in use.
    #[inline]
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Returns the number of slots in blocks that exist, used or free.
    #[inline]
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns one more than the greatest index of a slot that was ever created.
    pub(super) fn end(&self) -> u64 {
        (self.free.len() * CHUNK) as u64
    }

    /// Returns whether `n` more slots can be used.
    #[inline(always)]
    pub(super) fn has_room_for(&self, n: u32) -> bool {
        // Neither comes near the end of its type.
        self.live + n <= self.max
    }

    /// Returns the number of slots that can still be used.
    #[inline]
    pub(super) fn remaining(&self) -> u32 {
        // The owner of the table checks before it inserts. If it forgets to, a crash would not
        // help.
        self.max.saturating_sub(self.live)
    }

    /// Sets the upper bound of the slots in use.
    #[cfg(all(test, not(loom)))]
    pub(super) fn set_max(&mut self, max: u32) {
        self.max = max;
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.slots as usize).max(self.flat.capacity()) * size_of::<T>()
            + self.chunks.capacity() * size_of::<Option<Box<[T; CHUNK]>>>()
            + self.free.capacity() * size_of::<u128>()
            + self.links.capacity() * size_of::<ChunkLinks>()
    }

    /// Puts `value` into a free slot and returns its index.
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let id = self.claim();
        self[id] = value;
        id
    }

    /// Claims a free slot.
    #[inline(always)]
    fn claim(&mut self) -> u32 {
        self.live += 1;
        if self.recent_len == 0 {
            self.refill();
        }
        self.recent_len -= 1;
        self.recent[self.recent_len as usize % RECENT]
    }

    /// Puts free slots of one chunk on the empty stack, the lowest on top.
    #[cold]
    #[inline(never)]
    fn refill(&mut self) {
        if self.partial == NIL {
            self.add_chunk();
        }
        let chunk = self.partial;
        let few = self.free[chunk as usize].count_ones().min(Self::REFILL);
        for i in (0..few).rev() {
            self.recent[i as usize % RECENT] = self.claim_in(chunk);
        }
        self.recent_len = few;
    }

    /// Takes all but the `remaining` slots freed last off the stack.
    #[cold]
    #[inline(never)]
    fn flush(&mut self, remaining: u32) {
        let flushed = self.recent_len.saturating_sub(remaining) as usize % (RECENT + 1);
        for i in 0..flushed {
            self.free_in_chunk(self.recent[i]);
        }
        self.recent.copy_within(flushed.., 0);
        self.recent_len -= flushed as u32;
    }

    /// Claims a free slot of `chunk`, which has one, without counting it.
    #[inline(always)]
    fn claim_in(&mut self, chunk: u32) -> u32 {
        let free = &mut self.free[chunk as usize];
        let id = (chunk << Self::SHIFT) + free.trailing_zeros();
        *free &= *free - 1;
        if *free == 0 {
            self.unlist_partial(chunk);
        }
        id
    }

    /// Frees the slot `id`, which must be in use, and returns its value.
    #[inline(always)]
    pub(super) fn remove(&mut self, id: u32) -> T {
        let value = self[id];
        self.free(id);
        value
    }

    /// Frees the slot `id`, which must be in use. Its value is not read.
    #[inline(always)]
    pub(super) fn free(&mut self, id: u32) {
        steps::count(1);
        self.live -= 1;
        if self.recent_len as usize == Self::STACK {
            self.flush(Self::REFILL);
        }
        self.recent[self.recent_len as usize % RECENT] = id;
        self.recent_len += 1;
        // Few slots of many: the chunks of those on the stack are freed, too.
        if self.slots / 4 > self.live + CHUNK as u32 / 4 && !self.is_flat() {
            self.flush(0);
        }
    }

    /// Marks a slot as free in the word of its chunk.
    fn free_in_chunk(&mut self, id: u32) {
        let chunk = id >> Self::SHIFT;
        let free = &mut self.free[chunk as usize];
        let was_full = *free == 0;
        *free |= 1 << (id % CHUNK as u32);
        if was_full {
            self.list_partial(chunk);
        } else if *free == Self::ALL_FREE {
            self.emptied(chunk);
        }
    }

    /// Moves one slot out of the last chunk into a slot before it, and returns its old and new
    /// index. Returns `None` if there is no such chunk, or if no free slot was found before it.
    /// Only for slots whose index is not stored outside. O(1).
    pub(super) fn move_slot_down(&mut self) -> Option<(u32, u32)> {
        self.flush(0);
        let last = self.free.len().checked_sub(1)?;
        if matches!(self.chunks.last(), Some(None)) {
            self.trim();
            return None;
        }
        let used = !self.free[last] & Self::ALL_FREE;
        if used == 0 {
            self.give_back(last as u32);
            return None;
        }
        let old = ((last as u32) << Self::SHIFT) + used.trailing_zeros();
        let value = self[old];
        let chunk = self.free_chunk_before(last)?;
        let new = self.claim_in(chunk);
        self.live += 1;
        self[new] = value;
        self.remove(old);
        Some((old, new))
    }

    /// Returns a chunk before `last` with a free slot, if one is found soon.
    fn free_chunk_before(&mut self, last: usize) -> Option<u32> {
        for _ in 0..TRIM.min(last) {
            if self.cursor as usize >= last {
                self.cursor = 0;
            }
            if self.free[self.cursor as usize] != 0 {
                return Some(self.cursor);
            }
            self.cursor += 1;
        }
        None
    }

    /// Returns whether the slot exists, in use or not.
    pub(super) fn contains(&self, id: u32) -> bool {
        let chunk = self.chunks.get(id as usize >> Self::SHIFT);
        (id as usize) < self.flat.len() || chunk.is_some_and(Option::is_some)
    }

    #[cold]
    fn list_partial(&mut self, chunk: u32) {
        let next = std::mem::replace(&mut self.partial, chunk);
        self.link(chunk, next);
    }

    /// Makes `chunk` the first of the list that begins with `next`.
    fn link(&mut self, chunk: u32, next: u32) {
        self.links[chunk as usize] = ChunkLinks { prev: NIL, next };
        if next != NIL {
            self.links[next as usize].prev = chunk;
        }
    }

    #[cold]
    fn unlist_partial(&mut self, chunk: u32) {
        let first = self.unlink(chunk, self.partial);
        self.partial = first;
    }

    /// Removes `chunk` from the list that begins with `first`; returns the first one afterwards.
    fn unlink(&mut self, chunk: u32, first: u32) -> u32 {
        let ChunkLinks { prev, next } = self.links[chunk as usize];
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
        if prev == NIL {
            return next;
        }
        self.links[prev as usize].next = next;
        first
    }

    /// Frees a chunk without used slots, or keeps it for the next slot.
    #[cold]
    fn emptied(&mut self, chunk: u32) {
        if self.is_flat() {
            return self.shorten_flat();
        }
        let before = std::mem::replace(&mut self.spare_chunk, chunk);
        if before != chunk && self.is_empty(before) {
            self.spare_chunk = before.min(chunk);
            self.give_back(before.max(chunk));
        }
    }

    /// Returns whether the chunk, or `NIL`, is one without used slots.
    fn is_empty(&self, chunk: u32) -> bool {
        chunk != NIL && self.free[chunk as usize] == Self::ALL_FREE
    }

    /// Removes the chunks without used slots from the end of a flat table.
    fn shorten_flat(&mut self) {
        while self.free.last() == Some(&Self::ALL_FREE) {
            self.unlist_partial(self.free.len() as u32 - 1);
            self.free.pop();
            self.links.pop();
        }
        let slots = self.free.len() * CHUNK;
        self.slots = slots as u32;
        self.flat.truncate(slots);
        if self.flat.capacity() > 4 * slots {
            steps::count(self.free.len());
            self.flat.shrink_to(2 * slots);
        }
    }

    /// Frees a chunk without used slots.
    fn give_back(&mut self, chunk: u32) {
        if self.is_flat() {
            return self.shorten_flat();
        }
        self.unlist_partial(chunk);
        self.chunks[chunk as usize] = None;
        self.slots -= CHUNK as u32;
        self.free[chunk as usize] = 0;
        if self.spare_chunk == chunk {
            self.spare_chunk = NIL;
        }
        let absent = std::mem::replace(&mut self.absent, chunk);
        self.link(chunk, absent);
        self.trim();
    }

    /// Removes freed chunks at the end of the vectors.
    #[cold]
    fn trim(&mut self) {
        if self.slots as usize == CHUNK && self.is_empty(self.spare_chunk) {
            self.unlist_partial(self.spare_chunk);
            self.slots = 0;
            (self.absent, self.spare_chunk) = (NIL, NIL);
            self.chunks.clear();
            self.free.clear();
            self.links.clear();
        }
        if self.slots as usize <= FEW_CHUNKS * CHUNK && self.chunks.len() > TRIM {
            return self.shorten();
        }
        for _ in 0..TRIM {
            let Some(None) = self.chunks.last() else { break };
            let chunk = self.chunks.len() as u32 - 1;
            let absent = self.unlink(chunk, self.absent);
            self.absent = absent;
            self.chunks.pop();
            self.free.pop();
            self.links.pop();
        }
        let len = self.chunks.len();
        let long = |capacity| capacity > 2 * len + TRIM;
        if len == 0 {
            // Nothing is copied.
            (self.chunks, self.free, self.links) = (Vec::new(), Vec::new(), Vec::new());
        } else if long(self.chunks.capacity()) {
            shrink(&mut self.chunks);
        } else if long(self.free.capacity()) {
            shrink(&mut self.free);
        } else if long(self.links.capacity()) {
            shrink(&mut self.links);
        }
    }

    /// Shortens the vectors at once, when few chunks are left and all of them were among the first.
    /// Reads a word per chunk, and copies few.
    fn shorten(&mut self) {
        let spare = self.spare_chunk;
        if self.is_empty(spare) && spare as usize >= TRIM {
            self.spare_chunk = NIL;
            return self.give_back(spare);
        }
        let len = self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if len > TRIM {
            return;
        }
        self.chunks.truncate(len);
        self.free.truncate(len);
        self.links.truncate(len);
        self.absent = NIL;
        for chunk in 0..len {
            if self.chunks[chunk].is_some() {
                continue;
            }
            let absent = std::mem::replace(&mut self.absent, chunk as u32);
            self.link(chunk as u32, absent);
        }
        shrink(&mut self.chunks);
        shrink(&mut self.free);
        shrink(&mut self.links);
    }

    /// Lengthens at most one vector. A vector is lengthened while it still has room for the chunks
    /// of those calls that may lengthen the others first.
    fn reserve(&mut self) {
        let room = |capacity, len| capacity - len < VECTORS;
        let len = self.free.len();
        if room(self.chunks.capacity(), len) {
            grow(&mut self.chunks);
        } else if room(self.free.capacity(), len) {
            grow(&mut self.free);
        } else if room(self.links.capacity(), len) {
            grow(&mut self.links);
        }
        if len == 0 {
            // The first chunk: nothing is copied.
            grow(&mut self.free);
            grow(&mut self.links);
        }
    }

    /// Adds a chunk to a flat table. Copying a chunk counts as one step: it takes about as long as
    /// reading a slot that is in no cache.
    fn lengthen_flat(&mut self) {
        let chunk = self.free.len();
        if self.flat.len() == self.flat.capacity() {
            steps::count(chunk);
        }
        self.flat.resize((chunk + 1) * CHUNK, T::EMPTY);
        self.free.push(Self::ALL_FREE);
        self.links.push(ChunkLinks { prev: NIL, next: NIL });
        self.list_partial(chunk as u32);
        self.slots += CHUNK as u32;
    }

    /// Moves the slots of a flat table into chunks.
    fn spread(&mut self) {
        steps::count(self.free.len());
        grow(&mut self.free);
        grow(&mut self.links);
        self.chunks.reserve_exact(self.free.capacity());
        let flat = std::mem::take(&mut self.flat);
        let boxed = |chunk: &[T]| Box::<[T]>::from(chunk).try_into().ok();
        self.chunks.extend(flat.chunks_exact(CHUNK).map(boxed));
    }

    /// Makes a chunk in place. An array on the stack would take more of it than a coroutine of a
    /// model has.
    fn empty_chunk() -> Option<Box<[T; CHUNK]>> {
        vec![T::EMPTY; CHUNK].into_boxed_slice().try_into().ok()
    }

    #[cold]
    fn add_chunk(&mut self) {
        if self.is_flat() {
            if self.free.len() < FLAT_CHUNKS {
                return self.lengthen_flat();
            }
            self.spread();
        }
        let chunk = match self.absent {
            NIL => {
                self.reserve();
                self.chunks.push(None);
                self.free.push(0);
                self.links.push(ChunkLinks { prev: NIL, next: NIL });
                self.free.len() as u32 - 1
            }
            absent => {
                self.absent = self.unlink(absent, absent);
                absent
            }
        };
        self.chunks[chunk as usize] = Self::empty_chunk();
        self.free[chunk as usize] = Self::ALL_FREE;
        self.list_partial(chunk);
        self.slots += CHUNK as u32;
    }
}

/// Makes a vector an eighth longer: slack costs more than growing does.
fn grow<E>(vector: &mut Vec<E>) {
    let len = vector.len();
    steps::count(len);
    // The capacity includes room for the calls that lengthen the other vectors.
    vector.reserve_exact((len / 8).max(16) + VECTORS);
}

/// Shortens a vector whose capacity is far more than it needs.
fn shrink<E>(vector: &mut Vec<E>) {
    let len = vector.len();
    steps::count(len);
    vector.shrink_to(len + len / 8 + VECTORS);
}

impl<T: TableSlot, const CHUNK: usize> Index<u32> for ChunkedTable<T, CHUNK> {
    type Output = T;

    // The branch depends on the table, not on the index, which would be unpredictable.
    #[inline(always)]
    fn index(&self, id: u32) -> &T {
        steps::count(1);
        if let Some(slot) = self.flat.get(id as usize) {
            return slot;
        }
        match self.chunks.get(id as usize >> Self::SHIFT) {
            Some(Some(chunk)) => &chunk[id as usize % CHUNK],
            _ => absent(id),
        }
    }
}

impl<T: TableSlot, const CHUNK: usize> IndexMut<u32> for ChunkedTable<T, CHUNK> {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut T {
        steps::count(1);
        if let Some(slot) = self.flat.get_mut(id as usize) {
            return slot;
        }
        match self.chunks.get_mut(id as usize >> Self::SHIFT) {
            Some(Some(chunk)) => &mut chunk[id as usize % CHUNK],
            _ => absent(id),
        }
    }
}

/// Reports an index without a slot: a broken invariant of the caller.
#[cold]
fn absent(id: u32) -> ! {
    panic!("slot {id} is not in the table");
}

/// Invariants, for tests.
#[cfg(all(test, not(loom)))]
impl<T: TableSlot, const CHUNK: usize> ChunkedTable<T, CHUNK> {
    /// Checks that the words, the stack, the lists and the vectors agree. O(slots).
    pub(super) fn check(&self) {
        let chunks = self.free.len();
        assert_eq!(self.links.len(), chunks);
        let exists = |chunk: usize| self.is_flat() || self.chunks[chunk].is_some();
        if self.is_flat() {
            assert_eq!(self.flat.len(), chunks * CHUNK);
        } else {
            assert_eq!((self.chunks.len(), self.flat.capacity()), (chunks, 0));
            let empty = (0..chunks).filter(|&chunk| self.is_empty(chunk as u32)).count();
            assert!(empty <= 1, "{empty} chunks without used slots");
            // Of the vectors that a next chunk lengthens, one a call, the last has room till then.
            let rooms = [self.chunks.capacity(), self.free.capacity(), self.links.capacity()]
                .map(|capacity| capacity - chunks);
            let short = rooms.iter().filter(|&&room| room < VECTORS).enumerate();
            short.for_each(|(calls, &room)| assert!(room >= calls, "{rooms:?} chunks fit"));
        }
        let there = (0..chunks).filter(|&chunk| exists(chunk)).count();
        assert_eq!(self.slots as usize, there * CHUNK);
        let free: u32 = self.free.iter().map(|word| word.count_ones()).sum();
        assert_eq!(self.slots, free + self.live + self.recent_len);
        let stack = &self.recent[..self.recent_len as usize];
        for (at, &id) in stack.iter().enumerate() {
            let word = self.free[(id >> Self::SHIFT) as usize];
            assert!(self.contains(id) && word >> (id % CHUNK as u32) & 1 == 0, "{id} is free");
            assert!(!stack[..at].contains(&id), "slot {id} is twice in the stack");
        }
        let partial = |chunk: usize| exists(chunk) && self.free[chunk] != 0;
        self.check_list(self.partial, &partial);
        self.check_list(self.absent, &|chunk| !exists(chunk));
        assert!((0..chunks).all(|chunk| exists(chunk) || self.free[chunk] == 0));
    }

    /// Checks that the list that begins with `first` has just the chunks that `belongs` names.
    fn check_list(&self, first: u32, belongs: &dyn Fn(usize) -> bool) {
        let (mut prev, mut chunk, mut len) = (NIL, first, 0);
        while chunk != NIL {
            let links = self.links[chunk as usize];
            assert!(links.prev == prev && belongs(chunk as usize), "chunk {chunk} of {first}");
            (prev, chunk, len) = (chunk, links.next, len + 1);
        }
        assert_eq!(len, (0..self.free.len()).filter(|&chunk| belongs(chunk)).count());
    }

    /// Returns the slots that the flat table has room for.
    pub(super) fn flat_capacity(&self) -> usize {
        self.flat.capacity()
    }

    /// Returns the chunks for which the vectors have room.
    pub(super) fn capacities(&self) -> [usize; VECTORS] {
        [self.chunks.capacity(), self.free.capacity(), self.links.capacity()]
    }
}
