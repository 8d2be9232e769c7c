//! *Journal*: blocks of changes, written one after the other. The blocks of a
//! [checkpoint](super::checkpoint) have the same form and another beginning.

use super::BLOCK;
use super::block::{Fields, Reader, is_sealed, seal};
use super::entry::{Change, ENTRY};

const MAGIC: [u8; 4] = *b"KvJ1";
const HEADER: usize = 64;
/// The field of the block's checksum.
const CHECKSUM: usize = 4;

/// The changes that fit into a block.
pub const RECORDS_PER_BLOCK: usize = (BLOCK - HEADER) / ENTRY;

/// A block of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalBlock {
    /// The file to which it belongs.
    pub file: [u8; 16],
    /// Of which journal of the file it is part. Each has a higher number than the one before.
    pub epoch: u64,
    /// Its place in the journal.
    pub index: u32,
    /// The changes, in their order: at most [`RECORDS_PER_BLOCK`].
    pub changes: Vec<Change>,
}

/// Writes a block.
///
/// # Panics
/// If there are too many changes, or `bytes` is not a block.
pub fn write_journal_block(block: &JournalBlock, bytes: &mut [u8]) {
    let JournalBlock { file, epoch, index, changes } = block;
    write_block(MAGIC, (*file, *epoch, *index), changes, bytes);
}

/// Reads a block; `None` if it is none, or damaged.
#[must_use]
pub fn read_journal_block(bytes: &[u8]) -> Option<JournalBlock> {
    read_block(MAGIC, bytes)
}

/// Writes a block that begins with `magic`, of the file, epoch and place in `of`.
pub(super) fn write_block(
    magic: [u8; 4],
    of: ([u8; 16], u64, u32),
    changes: &[Change],
    bytes: &mut [u8],
) {
    assert!(changes.len() <= RECORDS_PER_BLOCK && bytes.len() == BLOCK);
    let (file, epoch, index) = of;
    bytes.fill(0);
    let mut fields = Fields::new(bytes);
    fields.put(&magic);
    fields.put(&[0; 4]);
    fields.put(&file);
    fields.put(&epoch.to_le_bytes());
    fields.put(&index.to_le_bytes());
    fields.put(&(changes.len() as u32).to_le_bytes());
    for (change, bytes) in changes.iter().zip(bytes[HEADER..].chunks_exact_mut(ENTRY)) {
        change.write(bytes);
    }
    seal(bytes, CHECKSUM);
}

/// Reads a block that begins with `magic`; `None` if it is none, or damaged.
pub(super) fn read_block(magic: [u8; 4], bytes: &[u8]) -> Option<JournalBlock> {
    if bytes.len() != BLOCK || bytes[..4] != magic || !is_sealed(bytes, CHECKSUM) {
        return None;
    }
    let mut fields = Reader(&bytes[8..]);
    let (file, epoch, index) = (fields.take(), fields.u64(), fields.u32());
    let count = fields.u32() as usize;
    if count > RECORDS_PER_BLOCK {
        return None;
    }
    let changes = bytes[HEADER..].chunks_exact(ENTRY).take(count).map(Change::read);
    let changes = changes.collect::<Option<Vec<_>>>()?;
    Some(JournalBlock { file, epoch, index, changes })
}
