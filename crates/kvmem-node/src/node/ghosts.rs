//! *Ghosts*: records of values that have left the memory. A miss finds its
//! [reason](super::MissReason) here.
//!
//! A key has one bucket, of four records of 16 bytes: a value that leaves writes one record, and a
//! miss reads four. A record that comes into a full bucket replaces the one whose value left first.
//! A record has the whole hash of its key, so two keys share one as seldom as two values do.
//!
//! The table has two records for each entry of the index, at least [`MIN_RECORDS`] and at most
//! [`MAX_RECORDS`]. The kernel
//! provides its memory as it fills. A server that restarts begins with an empty table.

use super::miss_reason::MissReason;

/// The most records: 16 MiB.
const MAX_RECORDS: u64 = 1 << 20;
/// The fewest records: 64 KiB.
const MIN_RECORDS: u64 = 1 << 12;
/// Records of a bucket.
const WAYS: usize = 4;

/// The record of a value that has left the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ghost {
    /// Why a look-up misses it: a value that left for another reason has no record.
    pub(super) reason: MissReason,
    /// When it left, in seconds of the machine's clock.
    pub(super) left_s: u32,
    /// The namespace whose block it was evicted for; [`NO_NAMESPACE`](super::NO_NAMESPACE): none.
    pub(super) evicted_for: u16,
    /// The priority that it had.
    pub(super) priority: u8,
}

impl Ghost {
    fn pack(self) -> u64 {
        let Ghost { reason, left_s, evicted_for, priority } = self;
        u64::from(left_s) << 32
            | u64::from(evicted_for) << 16
            | u64::from(priority) << 8
            | reason as u64
    }

    fn unpack(bits: u64) -> Ghost {
        Ghost {
            reason: MissReason::ALL[(bits as u8) as usize],
            left_s: (bits >> 32) as u32,
            evicted_for: (bits >> 16) as u16,
            priority: (bits >> 8) as u8,
        }
    }
}

/// Records by the hashes of keys.
#[derive(Debug)]
pub(super) struct Ghosts {
    /// A record is a hash, which is not 0, and its [bits](Ghost::pack). A vector of zeros takes no
    /// memory before it is written.
    words: Vec<u64>,
    /// Number of buckets minus one; their number is a power of two.
    mask: usize,
}

impl Ghosts {
    /// Makes a table for an index of some entries.
    pub(super) fn new(entries: u32) -> Ghosts {
        let records = (u64::from(entries) * 2).clamp(MIN_RECORDS, MAX_RECORDS);
        let buckets = (records as usize / WAYS).next_power_of_two();
        Ghosts { words: vec![0; buckets * WAYS * 2], mask: buckets - 1 }
    }

    fn bucket(&self, hash: u64) -> usize {
        (hash as usize & self.mask) * WAYS * 2
    }

    /// Adds the record of a key; it replaces an earlier one of the key.
    pub(super) fn add(&mut self, hash: u64, ghost: Ghost) {
        let first = self.bucket(hash);
        let bucket = &mut self.words[first..first + WAYS * 2];
        let age = |record: &[u64]| match record[0] {
            it if it == hash => (0, 0),
            0 => (1, 0),
            _ => (2, Ghost::unpack(record[1]).left_s),
        };
        let oldest = bucket.chunks_exact_mut(2).min_by_key(|record| age(record));
        oldest.expect("a bucket has records").copy_from_slice(&[hash, ghost.pack()]);
    }

    /// Returns the record of a key.
    pub(super) fn find(&self, hash: u64) -> Option<Ghost> {
        let first = self.bucket(hash);
        let mut records = self.words[first..first + WAYS * 2].chunks_exact(2);
        records.find(|record| record[0] == hash).map(|record| Ghost::unpack(record[1]))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ghost(left_s: u32) -> Ghost {
        Ghost { reason: MissReason::Expired, left_s, evicted_for: 65535, priority: 3 }
    }

    #[test]
    fn a_record_is_found_until_four_later_ones_of_its_bucket() {
        let mut ghosts = Ghosts::new(64);
        let hash = |at: u64| at << 32 | 5;
        for at in 1..=4 {
            ghosts.add(hash(at), ghost(at as u32));
        }
        // One that comes again has the place that it had.
        ghosts.add(hash(1), ghost(9));
        assert_eq!(
            (1..=4).map(|at| ghosts.find(hash(at)).expect("it fits").left_s).sum::<u32>(),
            18
        );
        ghosts.add(hash(5), ghost(10));
        assert_eq!(
            [2, 1, 5].map(|at| ghosts.find(hash(at))),
            [None, Some(ghost(9)), Some(ghost(10))]
        );
        assert_eq!(ghosts.find(6), None);
    }

    #[test]
    fn buckets_are_apart_and_full_before_a_record_is_replaced() {
        let mut ghosts = Ghosts::new(64);
        let hashes = || (1..=4_u64).flat_map(|at| (0..1024).map(move |bucket| at << 32 | bucket));
        hashes().for_each(|hash| ghosts.add(hash, ghost(0)));
        assert_eq!(hashes().filter(|hash| ghosts.find(*hash).is_some()).count(), 4096);
    }

    #[test]
    fn all_parts_of_a_record_come_back() {
        let mut ghosts = Ghosts::new(1);
        for (number, reason) in (0..).zip(MissReason::ALL) {
            let ghost = Ghost { reason, left_s: u32::MAX - number, evicted_for: 7, priority: 2 };
            ghosts.add(9, ghost);
            assert_eq!(ghosts.find(9), Some(ghost));
        }
    }
}
