//! *Slots*: the entries in memory, 60 bytes each.
//!
//! Slots lie in chunks that never move: a vector of all of them would be copied whenever it grows,
//! and have an eighth of its memory unused.
//!
//! Three fields are shorter than in the file. A length has 48 bits, since a value has less than
//! 2^32 blocks. Of a range's handle the lower half differs between ranges of one allocator. Of the
//! number of a change the lower half is kept: the upper half is that of the highest number, or one
//! less. An entry that is older than 2^32 changes gets a higher number than it had, which is still
//! lower than that of any later change: the order of an entry and its removal stays.

use kvmem::offset::RawHandle;

use super::index::Indexed;
use crate::format::{Digest, Entry, Hints};

pub(super) const NIL: u32 = u32::MAX;
/// Slots of a chunk: 60 KiB.
const CHUNK: usize = 1024;

/// An entry in memory. All fields have an alignment of at most four bytes.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) digest: Digest,
    range: [u32; 2],
    number: u32,
    start: u32,
    checksum: u32,
    expires: u32,
    len: u32,
    len_high: u16,
    pub(super) priority: i8,
    /// The entries that go before and after it; in a free slot, `next` is the next free one.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The next entry in its bucket.
    pub(super) chain: u32,
}

const _: () = assert!(size_of::<Slot>() == 60 && align_of::<Slot>() == 4);

const FREE: Slot = Slot {
    digest: Digest([0; 16]),
    range: [0; 2],
    number: 0,
    start: 0,
    checksum: 0,
    expires: 0,
    len: 0,
    len_high: 0,
    priority: 0,
    prev: NIL,
    next: NIL,
    chain: NIL,
};

impl Slot {
    pub(super) fn has_expired(&self, now: u32) -> bool {
        Hints { expires: self.expires, priority: 0 }.has_expired(now)
    }
}

/// All slots.
pub(super) struct Slots {
    chunks: Vec<Box<[Slot]>>,
    /// No entry of a chunk expires earlier.
    soonest: Vec<u32>,
    /// No entry of any chunk expires earlier.
    soonest_of_all: u32,
    /// The first free slot.
    free: u32,
    /// The upper half of all handles, in place.
    allocator: u128,
    /// The highest number of all entries so far.
    highest: u64,
}

impl Slots {
    pub(super) fn new() -> Self {
        Slots {
            chunks: Vec::new(),
            soonest: Vec::new(),
            soonest_of_all: u32::MAX,
            free: NIL,
            allocator: 0,
            highest: 0,
        }
    }

    /// Returns the bytes of the slots in memory.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Slot>()
            + self.chunks.capacity() * size_of::<Box<[Slot]>>()
            + self.soonest.capacity() * size_of::<u32>()
    }

    pub(super) fn get(&self, slot: u32) -> &Slot {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    /// Puts an entry into a free slot, which is in no list and no bucket.
    pub(super) fn add(&mut self, Indexed { entry, range }: Indexed) -> u32 {
        if self.free == NIL {
            self.add_chunk();
        }
        let bits = range.to_bits();
        self.allocator = bits >> 64 << 64;
        self.highest = self.highest.max(entry.number);
        let Entry { digest, number, start, checksum, len, hints: Hints { expires, priority } } =
            entry;
        let slot = self.free;
        self.free = self.get(slot).next;
        *self.get_mut(slot) = Slot {
            digest,
            range: [(bits >> 32) as u32, bits as u32],
            number: number as u32,
            start,
            checksum,
            expires,
            len: len as u32,
            len_high: (len >> 32) as u16,
            priority,
            ..FREE
        };
        if expires > 0 {
            let soonest = &mut self.soonest[slot as usize / CHUNK];
            *soonest = expires.min(*soonest);
            self.soonest_of_all = expires.min(self.soonest_of_all);
        }
        slot
    }

    fn add_chunk(&mut self) {
        let first = (self.chunks.len() * CHUNK) as u32;
        let mut chunk = vec![FREE; CHUNK].into_boxed_slice();
        for (next, slot) in (first + 1..).zip(&mut chunk) {
            slot.next = next;
        }
        chunk[CHUNK - 1].next = self.free;
        self.free = first;
        self.chunks.push(chunk);
        self.soonest.push(u32::MAX);
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        let free = self.free;
        *self.get_mut(slot) = Slot { next: free, ..FREE };
        self.free = slot;
    }

    /// Returns the entry of a slot.
    pub(super) fn entry(&self, slot: u32) -> Indexed {
        let slot = self.get(slot);
        let [high, low] = slot.range;
        let range = self.allocator | u128::from(high) << 32 | u128::from(low);
        let number = self.highest >> 32 << 32 | u64::from(slot.number);
        // Such a number has the upper half before.
        let older = if number > self.highest { 1 << 32 } else { 0 };
        let entry = Entry {
            digest: slot.digest,
            number: number.wrapping_sub(older),
            start: slot.start,
            checksum: slot.checksum,
            len: u64::from(slot.len_high) << 32 | u64::from(slot.len),
            hints: Hints { expires: slot.expires, priority: slot.priority },
        };
        Indexed { entry, range: RawHandle::from_bits(range) }
    }

    /// Returns an entry that has expired, if there is one. O(1) until the next one expires;
    /// otherwise it looks at one number for each chunk, and at the slots of a chunk in which one
    /// may have expired.
    pub(super) fn expired(&mut self, now: u32) -> Option<u32> {
        if now < self.soonest_of_all {
            return None;
        }
        for (index, (chunk, soonest)) in self.chunks.iter().zip(&mut self.soonest).enumerate() {
            if now < *soonest {
                continue;
            }
            if let Some(slot) = chunk.iter().position(|slot| slot.has_expired(now)) {
                return Some((index * CHUNK + slot) as u32);
            }
            let left = chunk.iter().map(|slot| slot.expires).filter(|&expires| expires > 0);
            *soonest = left.min().unwrap_or(u32::MAX);
        }
        self.soonest_of_all = self.soonest.iter().copied().min().unwrap_or(u32::MAX);
        None
    }
}
