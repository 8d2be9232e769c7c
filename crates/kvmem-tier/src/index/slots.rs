//! *Slots*: the entries in memory, 60 bytes each.
//!
//! Slots lie in chunks that never move: a vector of all of them would be copied whenever it grows,
//! and have an eighth of its memory unused.
//!
//! Three fields are shorter than in the file. A length has 48 bits, since a value has less than
//! 2^32 blocks. Of a range's handle the lower half differs between ranges of one allocator. Of the
//! number of a change the slot has the lower half: the upper half is that of the highest number, or
//! one less. An entry that is older than 2^32 changes gets a higher number than it had, which is
//! still lower than that of any later change: the order of an entry and its removal stays. That
//! holds for a checkpoint that is written in pieces, too: the number that an entry has in a piece
//! is at most that of the last change before the piece was copied, and its removal comes later.

use kvmem::offset::RawHandle;

use super::ranges::{Indexed, Ranges};
use super::scattered::Scattered;
use crate::format::{Digest, Encoded, Entry, Extents, Hints, blocks_of};

pub(super) const NIL: u32 = u32::MAX;
/// The value lies in several extents.
const SCATTERED: u8 = 1;
/// Walks through all entries are odd or even: the last one that has met this entry was odd.
const ODD: u8 = 2;
/// A power cut may have taken the bytes of the value, which were not read since.
const UNVERIFIED: u8 = 4;
/// The value is encoded: its length is in [`Slots::encoded`].
const ENCODED: u8 = 8;
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
    pub(super) expires: u32,
    len: u32,
    len_high: u16,
    pub(super) priority: i8,
    /// [`SCATTERED`] and others.
    flags: u8,
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
    flags: 0,
    prev: NIL,
    next: NIL,
    chain: NIL,
};

impl Slot {
    /// Returns the bytes that are stored.
    fn len(&self) -> u64 {
        u64::from(self.len_high) << 32 | u64::from(self.len)
    }

    fn is_scattered(&self) -> bool {
        self.flags & SCATTERED != 0
    }

    /// Returns whether the last walk that has met this entry was odd.
    pub(super) fn is_odd(&self) -> bool {
        self.flags & ODD != 0
    }

    /// Records that an odd walk, or an even one, has met this entry.
    pub(super) fn set_odd(&mut self, is_odd: bool) {
        self.flags = self.flags & !ODD | if is_odd { ODD } else { 0 };
    }

    pub(super) fn is_unverified(&self) -> bool {
        self.flags & UNVERIFIED != 0
    }

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
    /// The extents of values that have several.
    scattered: Scattered,
    /// The bits of [`Encoded`] of each slot, in chunks that have had an encoded value.
    encoded: Vec<Option<Box<[u64]>>>,
    /// The number of unverified values.
    unverified: usize,
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
            scattered: Scattered::default(),
            encoded: Vec::new(),
            unverified: 0,
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
            + self.scattered.bytes()
            + self.encoded.iter().flatten().count() * CHUNK * size_of::<u64>()
    }

    /// Returns the number of values in several extents.
    pub(super) fn scattered(&self) -> usize {
        self.scattered.len()
    }

    /// Returns the number of unverified values.
    pub(super) fn unverified(&self) -> usize {
        self.unverified
    }

    /// Records that the bytes of a value were read, and are right.
    pub(super) fn set_verified(&mut self, slot: u32) {
        let one = self.get_mut(slot);
        let was_unverified = one.is_unverified();
        one.flags &= !UNVERIFIED;
        self.unverified -= usize::from(was_unverified);
    }

    pub(super) fn get(&self, slot: u32) -> &Slot {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    /// Puts an entry into a free slot, which is in no list and no bucket.
    pub(super) fn add(&mut self, Indexed { entry, ranges }: &Indexed) -> u32 {
        if self.free == NIL {
            self.add_chunk();
        }
        let bits = ranges.first().to_bits();
        self.allocator = bits >> 64 << 64;
        self.highest = self.highest.max(entry.number);
        let Entry { digest, number, extents, checksum, len, encoded, hints, unverified } = *entry;
        let (Hints { expires, priority }, is_scattered) = (hints, extents.is_scattered());
        let slot = self.free;
        self.free = self.get(slot).next;
        *self.get_mut(slot) = Slot {
            digest,
            range: [(bits >> 32) as u32, bits as u32],
            number: number as u32,
            start: entry.start(),
            checksum,
            expires,
            len: len as u32,
            len_high: (len >> 32) as u16,
            priority,
            flags: if is_scattered { SCATTERED } else { 0 }
                | if unverified { UNVERIFIED } else { 0 }
                | if encoded.is_some() { ENCODED } else { 0 },
            ..FREE
        };
        self.unverified += usize::from(unverified);
        if let Some(encoded) = encoded {
            let chunk = &mut self.encoded[slot as usize / CHUNK];
            let chunk = chunk.get_or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
            chunk[slot as usize % CHUNK] = encoded.to_bits();
        }
        if is_scattered {
            self.scattered.add(slot, &extents, ranges);
        }
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
        self.encoded.push(None);
    }

    /// Returns how the value of a slot is encoded, whose flags are these.
    #[inline]
    fn encoded(&self, slot: u32, flags: u8) -> Option<Encoded> {
        if flags & ENCODED == 0 { None } else { self.find_encoded(slot) }
    }

    fn find_encoded(&self, slot: u32) -> Option<Encoded> {
        let chunk = self.encoded[slot as usize / CHUNK].as_ref()?;
        Encoded::from_bits(chunk[slot as usize % CHUNK])
    }

    /// Returns the bytes of the value of a slot.
    pub(super) fn value_len(&self, slot: u32) -> u64 {
        let of = self.get(slot);
        self.encoded(slot, of.flags).map_or_else(|| of.len(), Encoded::value_len)
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        if self.get(slot).is_scattered() {
            self.scattered.remove(slot);
        }
        self.set_verified(slot);
        let free = self.free;
        *self.get_mut(slot) = Slot { next: free, ..FREE };
        self.free = slot;
    }

    /// Returns the entry of a slot.
    pub(super) fn entry(&self, slot: u32) -> Entry {
        let of = self.get(slot);
        let len = of.len();
        let extents = if of.is_scattered() {
            self.scattered.get(slot, of.start, blocks_of(len)).0
        } else {
            Extents::contiguous(of.start, len)
        };
        Entry {
            digest: of.digest,
            number: self.number(slot),
            extents,
            checksum: of.checksum,
            len,
            encoded: self.encoded(slot, of.flags),
            hints: Hints { expires: of.expires, priority: of.priority },
            unverified: of.is_unverified(),
        }
    }

    /// Returns the ranges of a slot.
    pub(super) fn ranges(&self, slot: u32) -> Ranges {
        let of = self.get(slot);
        let handle = |[high, low]: [u32; 2]| {
            RawHandle::from_bits(self.allocator | u128::from(high) << 32 | u128::from(low))
        };
        if !of.is_scattered() {
            return Ranges::from(handle(of.range));
        }
        let (extents, behind) = self.scattered.get(slot, of.start, blocks_of(of.len()));
        let ranges = [of.range].into_iter().chain(behind).map(handle);
        Ranges::of(ranges.take(extents.len()))
    }

    /// Returns the number of the change that stored the entry of a slot.
    pub(super) fn number(&self, slot: u32) -> u64 {
        let number = self.highest >> 32 << 32 | u64::from(self.get(slot).number);
        // Such a number has the upper half before.
        let older = if number > self.highest { 1 << 32 } else { 0 };
        number.wrapping_sub(older)
    }

    /// Returns whether an entry may expire at some time.
    pub(super) fn has_times(&self) -> bool {
        self.soonest_of_all < u32::MAX
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Extent;

    /// Returns an entry of two blocks, in one range or in two.
    fn indexed(number: u64, expires: u32, is_encoded: bool, is_scattered: bool) -> Indexed {
        let handles = [1, 2].map(|part| RawHandle::from_bits(9 << 64 | part << 32 | 5));
        let parts = [10, 20].map(|start| Extent { start, blocks: 1 });
        let (extents, ranges) = match is_scattered {
            true => (Extents::of(&parts).unwrap(), Ranges::of(handles)),
            false => (Extents::contiguous(10, 5000), Ranges::from(handles[0])),
        };
        let entry = Entry {
            digest: Digest([7; 16]),
            number,
            extents,
            checksum: 3,
            len: 5000,
            encoded: Encoded::new(6000, 1).filter(|_| is_encoded),
            hints: Hints { expires, priority: 0 },
            unverified: false,
        };
        Indexed { entry, ranges }
    }

    #[test]
    fn all_that_slots_take_is_counted() {
        let mut slots = Slots::new();
        assert_eq!(slots.bytes(), 0);
        let chunks = |slots: &Slots, count: usize| {
            // A pointer with a length, and the time at which the first entry expires.
            count * 1024 * 60 + slots.chunks.capacity() * 16 + slots.soonest.capacity() * 4
        };
        for number in 0..2050 {
            slots.add(&indexed(number, 0, false, false));
        }
        assert_eq!(slots.bytes(), chunks(&slots, 3));
        slots.add(&indexed(2050, 0, true, false));
        slots.add(&indexed(2051, 0, true, false));
        assert_eq!(slots.bytes(), chunks(&slots, 3) + 8192, "the words of one chunk");
        let slot = slots.add(&indexed(2052, 0, false, true));
        let scattered = slots.scattered.bytes();
        assert!(scattered > 0);
        assert_eq!(slots.bytes(), chunks(&slots, 3) + 8192 + scattered);
        assert_eq!((slots.ranges(slot).first().to_bits() >> 64, slots.scattered()), (9, 1));
    }

    /// A slot has the lower half of a number, and the upper half is that of the highest one or one
    /// less.
    #[test]
    fn numbers_have_their_upper_half_for_four_billion_changes() {
        let mut slots = Slots::new();
        let numbers = [(3 << 32) - 5, (3 << 32) - 1, 3 << 32, (3 << 32) + 7];
        let added = numbers.map(|number| slots.add(&indexed(number, 0, false, false)));
        assert_eq!(added.map(|slot| slots.number(slot)), numbers);
        // There may be later changes by then than the lower half can count.
        slots.add(&indexed((4 << 32) + 1, 0, false, false));
        assert_eq!(slots.number(added[3]), (3 << 32) + 7);
        assert_eq!(slots.number(added[0]), (4 << 32) - 5, "it is too old, and counts as later");
    }

    /// A chunk is looked at when one of its entries may have expired, and then knows the next one.
    #[test]
    fn the_next_entry_to_expire_is_known() {
        let mut slots = Slots::new();
        assert!(!slots.has_times());
        let first = slots.add(&indexed(0, 50, false, false));
        let second = slots.add(&indexed(1, 90, false, false));
        slots.add(&indexed(2, 0, false, false));
        assert_eq!((slots.expired(49), slots.soonest_of_all), (None, 50));
        assert_eq!(slots.expired(50), Some(first));
        slots.remove(first);
        assert_eq!((slots.expired(50), slots.soonest_of_all), (None, 90));
        assert_eq!((slots.expired(89), slots.expired(90)), (None, Some(second)));
        slots.remove(second);
        assert_eq!((slots.expired(u32::MAX - 1), slots.has_times()), (None, false));
    }
}
