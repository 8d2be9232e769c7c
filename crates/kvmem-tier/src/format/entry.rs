//! *Entry*: where a value lies. Checkpoint and journal have the same form: a change is a *record*
//! of 64 bytes, and has a second one if its value lies in several extents.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;

use super::block::{Fields, Reader};

/// Bytes of a record.
pub(super) const RECORD: usize = 64;
/// The most extents of a value.
pub const MAX_EXTENTS: usize = 4;

/// The identity of a key: a keyed hash of it, of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Digest(pub [u8; 16]);

/// A part of the data area: whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// The first block, counted from the begin of the data area.
    pub start: u32,
    /// The number of blocks.
    pub blocks: u32,
}

/// The extents of a value, in the order of its bytes: one to [`MAX_EXTENTS`]. Each has at least one
/// block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Extents([Extent; MAX_EXTENTS]);

impl Extents {
    /// Returns these extents; `None` if there is none, one without blocks, or too many.
    #[must_use]
    pub fn of(parts: &[Extent]) -> Option<Extents> {
        let mut extents = [Extent::default(); MAX_EXTENTS];
        extents.get_mut(..parts.len())?.copy_from_slice(parts);
        let is_sound = !parts.is_empty() && parts.iter().all(|part| part.blocks > 0);
        is_sound.then_some(Extents(extents))
    }

    /// Returns one extent that begins at the block `start` and has the blocks of a value of `len`
    /// bytes.
    #[must_use]
    pub fn contiguous(start: u32, len: u64) -> Extents {
        let mut extents = [Extent::default(); MAX_EXTENTS];
        extents[0] = Extent { start, blocks: blocks_of(len) };
        Extents(extents)
    }

    /// Returns the blocks of all extents.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|part| u64::from(part.blocks)).sum()
    }

    /// Returns whether there are several.
    #[inline]
    #[must_use]
    pub fn is_scattered(&self) -> bool {
        self.0[1].blocks > 0
    }
}

impl From<Extent> for Extents {
    /// An extent without blocks becomes one of one block.
    fn from(Extent { start, blocks }: Extent) -> Extents {
        let mut extents = [Extent::default(); MAX_EXTENTS];
        extents[0] = Extent { start, blocks: blocks.max(1) };
        Extents(extents)
    }
}

impl Deref for Extents {
    type Target = [Extent];

    #[inline]
    fn deref(&self) -> &[Extent] {
        if !self.is_scattered() {
            return &self.0[..1];
        }
        let len = self.0.iter().position(|part| part.blocks == 0).unwrap_or(MAX_EXTENTS);
        &self.0[..len]
    }
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A stored value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub digest: Digest,
    /// The number of the change that stored it. Later changes have higher numbers.
    pub number: u64,
    /// Where its bytes are.
    pub extents: Extents,
    /// The checksum of the digest, the length and the bytes.
    pub checksum: u32,
    /// Bytes that are stored, without padding: those of the value, or of its encoded form.
    pub len: u64,
    /// How the value is encoded; `None` if it is stored as it is.
    pub encoded: Option<Encoded>,
    /// What its owner said about its worth.
    pub hints: Hints,
    /// In a journal: whether its bytes were written without a sync. In a checkpoint: whether a
    /// power cut may have taken them. They were written without a sync, by a process that ended
    /// before the next checkpoint, and were not read since.
    pub unverified: bool,
}

/// Hints of the owner of a value about its worth. Default: none.
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

/// How a value is encoded: the header of the stored form has the rest. One word: the bytes of the
/// value, and the number of its namespace in the upper 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded(NonZeroU64);

impl Encoded {
    /// Describes a value of fewer than 2^48 bytes, of the namespace with this number if it is
    /// encrypted; otherwise 0. `None` for a value without bytes that is not encrypted: it is never
    /// encoded.
    #[must_use]
    pub fn new(value_len: u64, namespace: u16) -> Option<Encoded> {
        Encoded::from_bits(value_len | u64::from(namespace) << 48)
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn value_len(self) -> u64 {
        self.0.get() & ((1 << 48) - 1)
    }

    /// Returns the number of its namespace, if it is encrypted; otherwise 0.
    #[must_use]
    pub fn namespace(self) -> u16 {
        (self.0.get() >> 48) as u16
    }

    /// Returns the word.
    pub(crate) fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// Returns what [`to_bits`](Self::to_bits) was called with.
    pub(crate) fn from_bits(bits: u64) -> Option<Encoded> {
        NonZeroU64::new(bits).map(Encoded)
    }
}

impl Entry {
    /// Returns the bytes of the value.
    #[must_use]
    pub fn value_len(&self) -> u64 {
        self.encoded.map_or(self.len, Encoded::value_len)
    }

    /// Returns where its bytes begin: a block of the data area.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.extents.0[0].start
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
    /// The value that the key has was used, and goes last. Its record is that of a value stored
    /// again, with the number that it has. No value depends on it, so no later block
    /// [repeats](super::Repeated) the key.
    Used(Entry),
    /// The value of the key is removed, if its number is at most this one.
    Removed(Digest, u64),
    /// Blocks of the data area that lost or falsified what was written are not used any more.
    Quarantined(Extent, u64),
}

const STORED: u32 = 1;
const REMOVED: u32 = 2;
const QUARANTINED: u32 = 3;
const EXTENTS: u32 = 4;

/// The bit of [`Entry::unverified`] among the flags of a record.
const UNVERIFIED: u8 = 1;
/// The bit of a value whose encoded form is stored.
const ENCODED: u8 = 2;

impl Change {
    /// Returns the number of the change.
    #[must_use]
    pub fn number(&self) -> u64 {
        match *self {
            Change::Stored(entry) | Change::Used(entry) => entry.number,
            Change::Removed(_, number) | Change::Quarantined(_, number) => number,
        }
    }

    /// Returns the key whose value the change replaces or removes; `None` for blocks, and for uses.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        match *self {
            Change::Stored(Entry { digest, .. }) | Change::Removed(digest, _) => Some(digest),
            Change::Used(_) | Change::Quarantined(..) => None,
        }
    }

    /// Returns the records of the change: 1 or 2.
    #[must_use]
    pub fn records(&self) -> usize {
        match self {
            Change::Stored(entry) | Change::Used(entry) => {
                1 + usize::from(entry.extents.is_scattered())
            }
            _ => 1,
        }
    }

    /// Writes the records of the change, and nothing behind them.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let none = Hints::default();
        let (mut flags, mut encoded_bits) = (0, 0);
        let (kind, digest, Extent { start, blocks }, checksum, len, hints) = match *self {
            Change::Stored(entry) | Change::Used(entry) => {
                let Entry { digest, extents, checksum, len, hints, unverified, .. } = entry;
                flags = if unverified { UNVERIFIED } else { 0 };
                if let Some(encoded) = entry.encoded {
                    flags |= ENCODED;
                    encoded_bits = encoded.to_bits();
                }
                let mut first = extents.0[0];
                if !extents.is_scattered() {
                    first.blocks = 0;
                }
                (STORED, digest.0, first, checksum, len, hints)
            }
            Change::Removed(digest, _) => (REMOVED, digest.0, Extent::default(), 0, 0, none),
            Change::Quarantined(extent, _) => (QUARANTINED, [0; 16], extent, 0, 0, none),
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
        fields.put(&[flags]);
        fields.put(&encoded_bits.to_le_bytes());
        fields.put(&[0; 2]);
        if let Change::Stored(entry) | Change::Used(entry) = *self
            && let Entry { number, extents, .. } = entry
            && extents.is_scattered()
        {
            fields.put(&EXTENTS.to_le_bytes());
            fields.put(&[0; 4]);
            fields.put(&number.to_le_bytes());
            for Extent { start, blocks } in &extents.0[1..] {
                fields.put(&start.to_le_bytes());
                fields.put(&blocks.to_le_bytes());
            }
            fields.put(&[0; 24]);
        }
    }

    /// Reads a change, and takes its records out of `records`. `None` if it is of no known kind, or
    /// if its extents are not those of its value.
    pub(super) fn read<'a>(records: &mut impl Iterator<Item = &'a [u8]>) -> Option<Change> {
        let mut fields = Reader(records.next()?);
        let (kind, checksum, number) = (fields.u32(), fields.u32(), fields.u64());
        let digest = Digest(fields.take());
        let extent = Extent { start: fields.u32(), blocks: fields.u32() };
        let len = fields.u64();
        let hints = Hints { expires: fields.u32(), priority: i8::from_le_bytes(fields.take()) };
        let [flags] = fields.take();
        let unverified = flags & UNVERIFIED != 0;
        let bits = fields.u64();
        let encoded = if flags & ENCODED != 0 { Encoded::from_bits(bits) } else { None };
        Some(match kind {
            STORED => {
                let extents = match extent.blocks {
                    0 => Extents::contiguous(extent.start, len),
                    _ => read_extents(extent, number, len, records.next()?)?,
                };
                Change::Stored(Entry {
                    digest,
                    number,
                    extents,
                    checksum,
                    len,
                    encoded,
                    hints,
                    unverified,
                })
            }
            REMOVED => Change::Removed(digest, number),
            QUARANTINED => Change::Quarantined(extent, number),
            _ => return None,
        })
    }
}

/// Reads the record with the other extents of a value of `len` bytes, which the change `number`
/// stored; `None` if it is another record, or if they do not have just the blocks of the value.
fn read_extents(first: Extent, number: u64, len: u64, record: &[u8]) -> Option<Extents> {
    let mut fields = Reader(record);
    let kind = fields.u32();
    fields.u32();
    if kind != EXTENTS || fields.u64() != number {
        return None;
    }
    let mut parts = [first; MAX_EXTENTS];
    for part in &mut parts[1..] {
        *part = Extent { start: fields.u32(), blocks: fields.u32() };
    }
    let count = parts.iter().position(|part| part.blocks == 0).unwrap_or(MAX_EXTENTS);
    let extents = Extents::of(&parts[..count])?;
    let is_whole = parts[count..].iter().all(|part| *part == Extent::default())
        && extents.is_scattered()
        && extents.blocks() == u64::from(blocks_of(len));
    is_whole.then_some(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parts: &[(u32, u32)], len: u64) -> Change {
        let parts: Vec<Extent> =
            parts.iter().map(|&(start, blocks)| Extent { start, blocks }).collect();
        Change::Stored(Entry {
            digest: Digest([7; 16]),
            number: 9,
            extents: Extents::of(&parts).unwrap(),
            checksum: 5,
            len,
            encoded: Encoded::new((1 << 48) - 9, 112).filter(|_| len > 10_000),
            hints: Hints { expires: 3, priority: -2 },
            unverified: len == 0,
        })
    }

    fn written(change: &Change) -> Vec<u8> {
        let mut bytes = vec![0xFF; change.records() * RECORD];
        change.write(&mut bytes);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Change> {
        let mut records = bytes.chunks_exact(RECORD);
        let change = Change::read(&mut records)?;
        records.next().is_none().then_some(change)
    }

    #[test]
    fn a_change_is_read_as_it_was_written() {
        for change in [
            stored(&[(70, 3)], 3 * 4096),
            stored(&[(70, 1)], 0),
            stored(&[(70, 1), (3, 1)], 4097),
            stored(&[(70, 2), (3, 1), (50, 9)], 12 * 4096),
            stored(&[(70, 2), (3, 1), (50, 9), (0, 1)], 13 * 4096 - 4095),
            Change::Removed(Digest([3; 16]), 77),
            Change::Quarantined(Extent { start: 4, blocks: 8 }, 78),
        ] {
            let bytes = written(&change);
            assert_eq!(read(&bytes), Some(change));
            let scattered = matches!(change, Change::Stored(entry) if entry.extents.len() > 1);
            assert_eq!(change.records(), 1 + usize::from(scattered));
        }
        // Without its flag the form of a value is that of its bytes.
        let mut bytes = written(&stored(&[(70, 2)], 8192));
        bytes[56] = 7;
        assert_eq!(read(&bytes), Some(stored(&[(70, 2)], 8192)));
        // As version 1 has it, which knows no other.
        assert_eq!(written(&stored(&[(70, 3)], 3 * 4096))[36..40], [0; 4]);
    }

    #[test]
    fn extents_that_are_not_those_of_the_value_are_no_change() {
        let whole = written(&stored(&[(70, 2), (3, 1), (50, 9)], 12 * 4096));
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            read(&bytes)
        };
        assert!(changed(RECORD + 16, 4).is_some(), "another place has the same blocks");
        for (at, byte) in [
            (36, 1),          // blocks of the first extent
            (41, 0xB0),       // bytes of the value
            (RECORD, 1),      // kind of the second record
            (RECORD + 8, 1),  // number of the change
            (RECORD + 20, 0), // blocks of the second extent
            (RECORD + 20, 2),
            (RECORD + 28, 0), // blocks of the third one, whose start is left
            (RECORD + 36, 1), // a fourth one
            (RECORD + 32, 1), // a fourth one without blocks
        ] {
            assert_eq!(changed(at, byte), None, "{at}");
        }
        assert_eq!(read(&whole[..RECORD]), None, "the second record is missing");
        assert_eq!(read(&whole[RECORD..]), None, "the first one is");
        let many = [Extent { start: 1, blocks: 1 }; MAX_EXTENTS + 1];
        assert_eq!((Extents::of(&[]), Extents::of(&many)), (None, None));
        assert_eq!(Extents::of(&[Extent::default()]), None);
    }
}
