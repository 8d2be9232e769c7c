//! *Index*: which values there are, and in which order they were used.
//!
//! Entries lie in a vector, found by a table of their numbers; the ones used least recently come
//! first in a list. An entry takes [`SLOT_BYTES`] bytes in the vector and four and a little in the
//! table.

use hashbrown::HashTable;
use kvmem::offset::RawHandle;

use crate::format::{Digest, Entry};

const NIL: u32 = u32::MAX;

/// Bytes of an entry in memory, without the table.
pub(crate) const SLOT_BYTES: usize = size_of::<Slot>();

/// An entry in memory.
#[derive(Clone, Copy)]
struct Slot {
    entry: Entry,
    /// The lower half of the handle of its range: all ranges are of one allocator.
    range: u64,
    /// The entries used before and after it; in a free slot, `next` is the next free one.
    prev: u32,
    next: u32,
}

/// An entry with its range in the space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indexed {
    pub(crate) entry: Entry,
    pub(crate) range: RawHandle,
}

/// The entries by digest.
pub(crate) struct Index {
    /// The upper half of all handles, in place.
    allocator: u128,
    table: HashTable<u32>,
    slots: Vec<Slot>,
    free: u32,
    /// The ends of the list: used least and most recently.
    oldest: u32,
    newest: u32,
}

/// The digest is a keyed hash already.
fn hash(digest: &Digest) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

impl Index {
    pub(crate) fn new() -> Self {
        let table = HashTable::new();
        Index { allocator: 0, table, slots: Vec::new(), free: NIL, oldest: NIL, newest: NIL }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the bytes of the index in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * SLOT_BYTES + self.table.allocation_size()
    }

    /// Returns the entry of a key.
    pub(crate) fn get(&self, digest: &Digest) -> Option<Indexed> {
        self.find(digest).map(|slot| self.at(slot))
    }

    /// Makes the entry of a key the one used last.
    pub(crate) fn touch(&mut self, digest: &Digest) {
        if let Some(slot) = self.find(digest) {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }

    /// Adds an entry as the one used last; returns the one that it replaces.
    pub(crate) fn insert(&mut self, indexed: Indexed) -> Option<Indexed> {
        let Indexed { entry, range } = indexed;
        let old = self.remove(&entry.digest);
        self.allocator = range.to_bits() >> 64 << 64;
        let new = Slot { entry, range: range.to_bits() as u64, prev: NIL, next: NIL };
        let slot = match self.free {
            NIL => {
                if self.slots.len() == self.slots.capacity() {
                    // By an eighth: doubling would leave half of the memory unused.
                    self.slots.reserve_exact(self.slots.len() / 8 + 64);
                }
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
            free => {
                self.free = std::mem::replace(&mut self.slots[free as usize], new).next;
                free
            }
        };
        let slots = &self.slots;
        let rehash = |&slot: &u32| hash(&slots[slot as usize].entry.digest);
        self.table.insert_unique(hash(&entry.digest), slot, rehash);
        self.link_newest(slot);
        old
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&mut self, digest: &Digest) -> Option<Indexed> {
        let slots = &self.slots;
        let same = |&slot: &u32| slots[slot as usize].entry.digest == *digest;
        let slot = self.table.find_entry(hash(digest), same).ok()?.remove().0;
        let indexed = self.at(slot);
        self.unlink(slot);
        self.slots[slot as usize].next = std::mem::replace(&mut self.free, slot);
        Some(indexed)
    }

    /// Returns the entry that was used least recently.
    pub(crate) fn oldest(&self) -> Option<Indexed> {
        (self.oldest != NIL).then(|| self.at(self.oldest))
    }

    /// Returns all entries, the one used least recently first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut slot = self.oldest;
        std::iter::from_fn(move || {
            let Slot { entry, next, .. } = *self.slots.get(slot as usize)?;
            slot = next;
            Some(entry)
        })
    }

    fn find(&self, digest: &Digest) -> Option<u32> {
        let same = |&slot: &u32| self.slots[slot as usize].entry.digest == *digest;
        self.table.find(hash(digest), same).copied()
    }

    fn at(&self, slot: u32) -> Indexed {
        let Slot { entry, range, .. } = self.slots[slot as usize];
        Indexed { entry, range: RawHandle::from_bits(self.allocator | u128::from(range)) }
    }

    fn link_newest(&mut self, slot: u32) {
        let prev = std::mem::replace(&mut self.newest, slot);
        let one = &mut self.slots[slot as usize];
        (one.prev, one.next) = (prev, NIL);
        match prev {
            NIL => self.oldest = slot,
            _ => self.slots[prev as usize].next = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { prev, next, .. } = self.slots[slot as usize];
        match prev {
            NIL => self.oldest = next,
            _ => self.slots[prev as usize].next = next,
        }
        match next {
            NIL => self.newest = prev,
            _ => self.slots[next as usize].prev = prev,
        }
    }
}
