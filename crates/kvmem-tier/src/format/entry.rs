//! *Entry*: where a value lies, in 64 bytes. Checkpoint and journal have the same form.

use super::block::{Fields, Reader};

/// Bytes of an entry.
pub(super) const ENTRY: usize = 64;

/// The identity of a key: a keyed hash of it, of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Digest(pub [u8; 16]);

/// A part of the data area: whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first block, counted from the begin of the data area.
    pub start: u32,
    /// The number of blocks.
    pub blocks: u32,
}

/// A stored value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub digest: Digest,
    /// The number of the change that stored it. Later changes have higher numbers.
    pub number: u64,
    /// Where its bytes begin: a block of the data area.
    pub start: u32,
    /// The checksum of the digest, the length and the bytes.
    pub checksum: u32,
    /// Bytes of the value, without padding.
    pub len: u64,
    /// What its owner said about its worth.
    pub hints: Hints,
}

/// What the owner of a value has said about its worth: nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    /// When the value expires, in seconds since 1970; 0: never.
    pub expires: u32,
    /// Values of lower priority are evicted first.
    pub priority: i8,
}

impl Hints {
    /// Returns whether the value has expired at `now`, in seconds since 1970.
    #[must_use]
    pub fn has_expired(&self, now: u32) -> bool {
        (1..=now).contains(&self.expires)
    }
}

impl Entry {
    /// Returns the blocks of the value.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent { start: self.start, blocks: blocks_of(self.len) }
    }
}

/// Returns the number of blocks that hold `len` bytes; a value occupies at least one.
pub(crate) fn blocks_of(len: u64) -> u32 {
    u32::try_from(len.div_ceil(super::BLOCK as u64)).unwrap_or(u32::MAX).max(1)
}

/// A change of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A value was stored; it replaces one of the same key.
    Stored(Entry),
    /// The value of the key is removed, if its number is at most this one.
    Removed(Digest, u64),
    /// Blocks of the data area that lost or falsified what was written are not used any more.
    Quarantined(Extent, u64),
}

const STORED: u32 = 1;
const REMOVED: u32 = 2;
const QUARANTINED: u32 = 3;

impl Change {
    /// Returns the number of the change.
    #[must_use]
    pub fn number(&self) -> u64 {
        match *self {
            Change::Stored(entry) => entry.number,
            Change::Removed(_, number) | Change::Quarantined(_, number) => number,
        }
    }

    /// Writes the 64 bytes of the change.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let none = Hints::default();
        let (kind, digest, start, blocks, checksum, len, hints) = match *self {
            Change::Stored(Entry { digest, start, checksum, len, hints, .. }) => {
                (STORED, digest.0, start, 0, checksum, len, hints)
            }
            Change::Removed(digest, _) => (REMOVED, digest.0, 0, 0, 0, 0, none),
            Change::Quarantined(Extent { start, blocks }, _) => {
                (QUARANTINED, [0; 16], start, blocks, 0, 0, none)
            }
        };
        let mut fields = Fields::new(bytes);
        fields.put(&kind.to_le_bytes());
        fields.put(&checksum.to_le_bytes());
        fields.put(&self.number().to_le_bytes());
        fields.put(&digest);
        fields.put(&start.to_le_bytes());
        fields.put(&blocks.to_le_bytes());
        fields.put(&len.to_le_bytes());
        fields.put(&hints.expires.to_le_bytes());
        fields.put(&hints.priority.to_le_bytes());
        fields.put(&[0; 11]);
    }

    /// Reads a change; `None` if it is of no known kind.
    pub(super) fn read(bytes: &[u8]) -> Option<Change> {
        let mut fields = Reader(bytes);
        let (kind, checksum, number) = (fields.u32(), fields.u32(), fields.u64());
        let digest = Digest(fields.take());
        let (start, blocks, len) = (fields.u32(), fields.u32(), fields.u64());
        let hints = Hints { expires: fields.u32(), priority: i8::from_le_bytes(fields.take()) };
        Some(match kind {
            STORED => Change::Stored(Entry { digest, number, start, checksum, len, hints }),
            REMOVED => Change::Removed(digest, number),
            QUARANTINED => Change::Quarantined(Extent { start, blocks }, number),
            _ => return None,
        })
    }
}
