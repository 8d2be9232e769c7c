//! *Checkpoint*: the whole index at one time, as blocks of changes.

use thiserror::Error;

use super::BLOCK;
use super::entry::Change;
use super::journal::{BlockOf, block_parts, read_block, write_block};
use super::repeated::RECORDS_PER_BLOCK;
use super::repeated::Repeated;

const MAGIC: [u8; 4] = *b"KvC1";
/// The entries that fit into a block, if each has one record.
pub(super) const ENTRIES_PER_BLOCK: usize = RECORDS_PER_BLOCK;

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
    let mut parts = block_parts(entries);
    let blocks = block_parts(entries).count().max(1);
    let mut bytes = vec![0; blocks * BLOCK];
    for (index, bytes) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        write_checkpoint_block(file, epoch, index as u32, parts.next().unwrap_or_default(), bytes);
    }
    bytes
}

/// Writes the block `index` of a checkpoint.
pub(crate) fn write_checkpoint_block(
    file: [u8; 16],
    epoch: u64,
    index: u32,
    entries: &[Change],
    bytes: &mut [u8],
) {
    let of = BlockOf { file, epoch, index };
    write_block(MAGIC, of, entries, (&Repeated::default(), 0), bytes);
}

/// Returns whether a block is the only one of a checkpoint without entries, of any file.
pub(crate) fn is_empty_checkpoint(block: &[u8]) -> bool {
    read_block(MAGIC, block).is_some_and(|block| block.index == 0 && block.changes.is_empty())
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
    let mut entries = Vec::with_capacity(bytes.len() / BLOCK * ENTRIES_PER_BLOCK);
    for (index, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
        let index = index as u32;
        let block = read_block(MAGIC, bytes)
            .filter(|block| (block.file, block.epoch, block.index) == (file, epoch, index));
        entries.extend(block.ok_or(CheckpointError::Damaged { index })?.changes);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::super::entry::Digest;
    use super::*;

    #[test]
    fn a_checkpoint_is_empty_if_its_first_block_has_no_entry() {
        let block = |index, entries: &[Change]| {
            let mut bytes = [0; BLOCK];
            write_checkpoint_block([1; 16], 2, index, entries, &mut bytes);
            is_empty_checkpoint(&bytes)
        };
        let entry = Change::Removed(Digest([3; 16]), 4);
        assert!(block(0, &[]));
        assert!(!block(0, &[entry]) && !block(1, &[]));
        assert!(!is_empty_checkpoint(&[0; BLOCK]));
    }
}
