//! *Header*: what the index file says of itself.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{VERSION, announce, put};
use crate::crc;
use crate::error::BadIndex;

/// The first eight bytes of an index file.
const MAGIC: u64 = u64::from_le_bytes(*b"KVMNODE\0");

/// The order of the bytes of a word, as a number that reads differently in another order.
const LITTLE_ENDIAN: u32 = 0x0102_0304;

/// The header's words in the file.
#[repr(C)]
pub(crate) struct HeaderCell {
    magic: AtomicU64,
    /// The version, and [`LITTLE_ENDIAN`] above it.
    version: AtomicU64,
    entries: AtomicU64,
    memory_len: AtomicU64,
    memory_id: AtomicU64,
    align: AtomicU64,
    node_id: AtomicU64,
    sum: AtomicU64,
    /// The batch that is being committed; 0: none.
    pub(crate) committing: AtomicU64,
    /// The number of the next batch.
    pub(crate) next_batch: AtomicU64,
    /// Entries that were ever used: those in front, and the checksum of their number above it. The
    /// pages of the others have no memory.
    entries_used: AtomicU64,
    /// Removals that the tier has not made: a [`TierRemovals`] as a number.
    tier_removals: AtomicU64,
    /// Part of what the checksum covers, as the next three words are.
    boundary: AtomicU64,
    session_file_id: AtomicU64,
    hash_key: [AtomicU64; 2],
}

/// Removals that the tier has not made, because none was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierRemovals {
    /// There are none.
    None,
    /// The keys are not known: the tier is cleared before it is used.
    Unknown,
    /// The process that recovered the file has the keys, and no other one.
    Recovered,
}

/// What does not change while the file lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Entries of the file.
    pub(crate) entries: u32,
    /// Bytes of the memory file.
    pub(crate) memory_len: u64,
    /// The inode number of the memory file.
    pub(crate) memory_id: u64,
    /// The alignment of all blocks.
    pub(crate) align: u64,
    /// No extent crosses a multiple of this number of bytes; 0: there is no boundary.
    pub(crate) boundary: u64,
    /// A random number that names this memory for its clients.
    pub(crate) node_id: u64,
    /// The inode number of the session file.
    pub(crate) session_file_id: u64,
    /// The secret key of the hashes of keys.
    pub(crate) hash_key: [u64; 2],
}

impl Header {
    /// Returns the bytes of the longest extent.
    pub(crate) fn max_len(&self) -> u64 {
        if self.boundary == 0 { self.memory_len } else { self.boundary.min(self.memory_len) }
    }

    fn words(&self) -> [u64; 11] {
        let version = u64::from(VERSION) | u64::from(LITTLE_ENDIAN) << 32;
        let Header { entries, memory_len, memory_id, align, node_id, .. } = *self;
        let Header { boundary, session_file_id, hash_key: [low, high], .. } = *self;
        let entries = entries.into();
        let first = [MAGIC, version, entries, memory_len, memory_id, align, node_id];
        let mut words = [0; 11];
        words[..7].copy_from_slice(&first);
        words[7..].copy_from_slice(&[boundary, session_file_id, low, high]);
        words
    }

    fn sum(&self) -> u64 {
        crc::of_words(&self.words()).into()
    }
}

impl HeaderCell {
    /// Writes the header of a new file, the magic number last.
    pub(crate) fn write(&self, header: &Header) {
        let cells = [
            &self.version,
            &self.entries,
            &self.memory_len,
            &self.memory_id,
            &self.align,
            &self.node_id,
            &self.boundary,
            &self.session_file_id,
            &self.hash_key[0],
            &self.hash_key[1],
        ];
        for (cell, word) in cells.into_iter().zip(&header.words()[1..]) {
            put(cell, *word);
        }
        put(&self.sum, header.sum());
        put(&self.committing, 0);
        put(&self.next_batch, 1);
        put(&self.entries_used, with_checksum(0));
        put(&self.tier_removals, 0);
        announce(&self.magic, MAGIC);
    }

    /// Says how many entries were ever used. A recovery looks at no others.
    pub(crate) fn set_entries_used(&self, used: u32) {
        announce(&self.entries_used, with_checksum(used));
    }

    /// Returns how many entries were ever used, of a file with `entries`.
    pub(crate) fn entries_used(&self, entries: u32) -> Result<u32, BadIndex> {
        // Acquire: pairs with the Release of `announce` in `set_entries_used`, in an earlier
        // process.
        let word = self.entries_used.load(Ordering::Acquire);
        let used = word as u32;
        match word == with_checksum(used) && used <= entries {
            true => Ok(used),
            false => Err(BadIndex::EntriesUsed { word, entries }),
        }
    }

    /// Returns the removals that the tier has not made. A number that no server writes counts as
    /// unknown ones.
    pub(crate) fn tier_removals(&self) -> TierRemovals {
        // Acquire: pairs with the Release of `announce` in an earlier process.
        match self.tier_removals.load(Ordering::Acquire) {
            0 => TierRemovals::None,
            2 => TierRemovals::Recovered,
            _ => TierRemovals::Unknown,
        }
    }

    pub(crate) fn set_tier_removals(&self, removals: TierRemovals) {
        if self.tier_removals() != removals {
            announce(&self.tier_removals, removals as u64);
        }
    }

    /// Reads and checks the header.
    pub(crate) fn read(&self) -> Result<Header, BadIndex> {
        // Acquire: pairs with the Release of `announce` in `write`.
        let magic = self.magic.load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(BadIndex::Foreign { magic });
        }
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let (version, order) = (load(&self.version) as u32, (load(&self.version) >> 32) as u32);
        if order != LITTLE_ENDIAN {
            return Err(BadIndex::ByteOrder { order });
        }
        if version != VERSION {
            return Err(BadIndex::Version { version, known: VERSION });
        }
        let header = Header {
            entries: load(&self.entries) as u32,
            memory_len: load(&self.memory_len),
            memory_id: load(&self.memory_id),
            align: load(&self.align),
            boundary: load(&self.boundary),
            node_id: load(&self.node_id),
            session_file_id: load(&self.session_file_id),
            hash_key: [load(&self.hash_key[0]), load(&self.hash_key[1])],
        };
        if load(&self.sum) != header.sum() || load(&self.entries) > u64::from(u32::MAX) {
            return Err(BadIndex::HeaderChecksum);
        }
        Ok(header)
    }
}

/// Returns a number with its checksum above it: one word, so both are stored at once.
fn with_checksum(number: u32) -> u64 {
    u64::from(number) | u64::from(crc::of(&number.to_le_bytes())) << 32
}
