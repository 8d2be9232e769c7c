//! *Table*: the slots by digest.
//!
//! A table of chains that grows by one bucket at a time (*linear hashing*; Litwin 1980), so that it
//! is never copied and is always as full as it may be: two entries a bucket, which makes two bytes
//! an entry and one more hop for half of the look-ups. Both are little compared with a read of a
//! disk.

use super::slots::{NIL, Slots};
use crate::format::Digest;

/// Entries for each bucket.
const LOAD: usize = 2;

/// The first slot of each bucket.
pub(super) struct Table {
    buckets: Vec<u32>,
    len: usize,
}

/// The digest is a keyed hash already.
fn hash(digest: &Digest) -> usize {
    let [a, b, c, d, e, f, g, h, ..] = digest.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) as usize
}

/// Returns the bucket of a digest in a table of `buckets` buckets: those that were not divided yet
/// in the present round stand for two.
fn bucket(digest: &Digest, buckets: usize) -> usize {
    let mask = buckets.next_power_of_two() - 1;
    let bucket = hash(digest) & mask;
    if bucket < buckets { bucket } else { bucket & (mask >> 1) }
}

impl Table {
    pub(super) fn new() -> Self {
        Table { buckets: vec![NIL], len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the table in memory.
    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u32>()
    }

    pub(super) fn find(&self, slots: &Slots, digest: &Digest) -> Option<u32> {
        let mut slot = self.buckets[bucket(digest, self.buckets.len())];
        while slot != NIL {
            let found = slots.get(slot);
            if found.digest == *digest {
                return Some(slot);
            }
            slot = found.chain;
        }
        None
    }

    /// Adds a slot whose digest the table does not have.
    pub(super) fn insert(&mut self, slots: &mut Slots, slot: u32) {
        let bucket = bucket(&slots.get(slot).digest, self.buckets.len());
        let first = std::mem::replace(&mut self.buckets[bucket], slot);
        slots.get_mut(slot).chain = first;
        self.len += 1;
        if self.len > LOAD * self.buckets.len() {
            self.divide(slots);
        }
    }

    /// Removes a slot, which the table has.
    pub(super) fn remove(&mut self, slots: &mut Slots, slot: u32) {
        let (digest, next) = (slots.get(slot).digest, slots.get(slot).chain);
        let bucket = bucket(&digest, self.buckets.len());
        let mut before = self.buckets[bucket];
        if before == slot {
            self.buckets[bucket] = next;
        } else {
            while slots.get(before).chain != slot {
                before = slots.get(before).chain;
            }
            slots.get_mut(before).chain = next;
        }
        self.len -= 1;
    }

    /// Divides the next bucket in two.
    fn divide(&mut self, slots: &mut Slots) {
        let buckets = self.buckets.len() + 1;
        if self.buckets.len() == self.buckets.capacity() {
            // By an eighth: doubling would leave half of the memory unused.
            self.buckets.reserve_exact(self.buckets.len() / 8 + 64);
        }
        let old = (buckets - 1) & ((buckets.next_power_of_two() - 1) >> 1);
        let mut slot = std::mem::replace(&mut self.buckets[old], NIL);
        self.buckets.push(NIL);
        while slot != NIL {
            let next = slots.get(slot).chain;
            let to = bucket(&slots.get(slot).digest, buckets);
            let first = std::mem::replace(&mut self.buckets[to], slot);
            slots.get_mut(slot).chain = first;
            slot = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use kvmem::offset::RawHandle;

    use super::*;
    use crate::format::{Entry, Extents, Hints};
    use crate::index::Indexed;

    /// The digests are random, so the longest of 5,000 chains has some ten more than the mean.
    #[test]
    fn chains_stay_short_and_the_table_grows_by_an_eighth() {
        let (mut slots, mut table) = (Slots::new(), Table::new());
        let mut capacities = Vec::new();
        let mut random = kvmem_testkit::random::Random::new(1);
        for number in 0..20_000 {
            let words = [random.below(u64::MAX), number].map(u64::to_le_bytes);
            let entry = Entry {
                digest: Digest(words.concat().try_into().unwrap()),
                number,
                extents: Extents::contiguous(0, 1),
                checksum: 0,
                len: 1,
                encoded: None,
                hints: Hints::default(),
                unverified: false,
            };
            let slot = slots.add(&Indexed { entry, ranges: RawHandle::from_bits(1).into() });
            table.insert(&mut slots, slot);
            let buckets = table.buckets.len();
            assert_eq!(buckets, (number as usize + 1).div_ceil(LOAD));
            let capacity = table.buckets.capacity();
            assert!(capacity <= buckets + buckets / 8 + 64);
            if capacities.last() != Some(&capacity) {
                capacities.push(capacity);
            }
        }
        assert!(capacities.len() < 60, "{} times", capacities.len());
        assert_eq!(table.bytes(), 4 * table.buckets.capacity());
        let chain = |first: &u32| {
            let is_slot = |slot: &u32| *slot != NIL;
            let next = |slot: &u32| Some(slots.get(*slot).chain).filter(is_slot);
            std::iter::successors(Some(*first).filter(is_slot), next).count()
        };
        let longest = table.buckets.iter().map(chain).max().unwrap();
        assert!(longest <= 4 * LOAD + 8, "{longest}");
    }
}
