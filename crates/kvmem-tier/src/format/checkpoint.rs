//! *Checkpoint*: the whole index at one time, as blocks of changes.

use thiserror::Error;

use super::BLOCK;
use super::block::{Fields, Reader, is_sealed, seal};
use super::entry::{Change, ENTRY};

const MAGIC: [u8; 4] = *b"KvC1";
const HEADER: usize = 64;
/// The field of the block's checksum.
const CHECKSUM: usize = 4;
/// The entries that fit into a block.
pub(super) const ENTRIES_PER_BLOCK: usize = (BLOCK - HEADER) / ENTRY;

/// The reason why a checkpoint cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A block is not what was written.
    #[error("block {index} of the checkpoint is damaged")]
    Damaged {
        /// Its place in the checkpoint.
        index: u32,
    },
}

/// Writes the blocks of a checkpoint: at least one.
#[must_use]
pub fn write_checkpoint(file: [u8; 16], epoch: u64, entries: &[Change]) -> Vec<u8> {
    let blocks = entries.len().div_ceil(ENTRIES_PER_BLOCK).max(1);
    let mut bytes = vec![0; blocks * BLOCK];
    for (index, bytes) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        let first = index * ENTRIES_PER_BLOCK;
        let entries = &entries[first..entries.len().min(first + ENTRIES_PER_BLOCK)];
        let mut fields = Fields::new(bytes);
        fields.put(&MAGIC);
        fields.put(&[0; 4]);
        fields.put(&file);
        fields.put(&epoch.to_le_bytes());
        fields.put(&(index as u32).to_le_bytes());
        fields.put(&(entries.len() as u32).to_le_bytes());
        for (entry, bytes) in entries.iter().zip(bytes[HEADER..].chunks_exact_mut(ENTRY)) {
            entry.write(bytes);
        }
        seal(bytes, CHECKSUM);
    }
    bytes
}

/// Reads the blocks of a checkpoint of this file and epoch.
///
/// # Errors
/// [`CheckpointError`] names the first block that is damaged.
pub fn read_checkpoint(
    file: [u8; 16],
    epoch: u64,
    bytes: &[u8],
) -> Result<Vec<Change>, CheckpointError> {
    let mut entries = Vec::with_capacity(bytes.len() / ENTRY);
    for (index, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
        let index = index as u32;
        let damaged = CheckpointError::Damaged { index };
        if bytes[..4] != MAGIC || !is_sealed(bytes, CHECKSUM) {
            return Err(damaged);
        }
        let mut fields = Reader(&bytes[8..]);
        let of = (fields.take(), fields.u64(), fields.u32());
        let count = fields.u32() as usize;
        if of != (file, epoch, index) || count > ENTRIES_PER_BLOCK {
            return Err(damaged);
        }
        for bytes in bytes[HEADER..].chunks_exact(ENTRY).take(count) {
            entries.push(Change::read(bytes).ok_or(damaged)?);
        }
    }
    Ok(entries)
}
