//! *Found*: what the index in a file says, read and not changed.
//!
//! The superblock with the higher generation leads to the checkpoint, which has the index of that
//! time. The blocks of the journal, read until one is missing, have the changes since then. What is
//! found is thus what the tier held at some moment not before the last checkpoint; after the end of
//! a process, what it held last.
//!
//! Opening a tier and [inspecting](super::inspect()) one both read it here.

use std::collections::HashMap;
use std::io;

use kvmem::offset::OffsetAllocator;

use super::error::TierError;
use crate::device::{AlignedBuffer, Device};
use crate::format::{
    BLOCK, Change, Digest, Entry, Extent, Layout, Superblock, SuperblockError, read_checkpoint,
    read_journal_block,
};
use crate::index::Indexed;

/// The two copies of the superblock, each as it is in its block.
pub(super) type Copies = [Result<Superblock, SuperblockError>; 2];

/// Reads both copies of the superblock. Fails if neither can be read.
pub(super) fn read_superblocks(device: &impl Device) -> Result<Copies, TierError> {
    let read = |copy: u64| {
        let at = copy * BLOCK as u64;
        if device.len() < at + BLOCK as u64 {
            return Ok(Err(SuperblockError::Foreign));
        }
        let mut buffer = AlignedBuffer::new(1);
        device.read_at(at, &mut buffer)?;
        Ok(Superblock::from_bytes(buffer.first_chunk().expect("the buffer is a block")))
    };
    let unreadable = |error: io::Error| Err(SuperblockError::Unreadable(error.kind()));
    match [read(0), read(1)] {
        [Err(error), Err(_)] => Err(TierError::device("read", 0)(error)),
        copies => Ok(copies.map(|copy| copy.unwrap_or_else(unreadable))),
    }
}

/// Returns the copy that counts, of a device of `len` bytes.
pub(super) fn valid_superblock(copies: &Copies, len: u64) -> Result<Superblock, TierError> {
    let superblock = match copies {
        [Ok(first), Ok(second)] if second.generation > first.generation => second,
        [Ok(found), _] | [_, Ok(found)] => found,
        &[Err(first), Err(second)] => return Err(TierError::Superblocks { first, second }),
    };
    if superblock.len > len {
        return Err(TierError::CutOff { expected: superblock.len, len });
    }
    Ok(*superblock)
}

/// Returns the blocks of the data area as a space in which nothing is in use.
pub(super) fn space_of(layout: &Layout) -> OffsetAllocator {
    OffsetAllocator::new(layout.data.blocks())
        .expect("a layout has at least one block for data, and fewer than 2^32")
}

/// What checkpoint and journal say.
#[derive(Default)]
pub(super) struct Found {
    /// The values with their places in the order of use, as far as the file has it.
    entries: HashMap<Digest, (u64, Entry)>,
    /// The next place in that order.
    order: u64,
    quarantined: Vec<Extent>,
    pub(super) next_number: u64,
    /// Changes in the checkpoint.
    pub(super) checkpoint_changes: u64,
    /// Blocks of the journal with changes after the checkpoint.
    pub(super) journal_blocks: u64,
    /// The changes in these blocks.
    pub(super) journal_changes: u64,
}

/// What was found, placed in a space.
pub(super) struct Restored {
    /// The values in address order, each with its place in the order of use.
    pub(super) live: Vec<(u64, Indexed)>,
    /// The extents not to be used, in address order.
    pub(super) quarantined: Vec<Extent>,
    /// Entries outside of the space, or in blocks of others.
    pub(super) dropped: u64,
}

impl Found {
    /// Reads the checkpoint and the journal to which the superblock leads.
    pub(super) fn read(device: &impl Device, superblock: &Superblock) -> Result<Found, TierError> {
        let Superblock { file, epoch, layout, .. } = *superblock;
        let area = layout.checkpoints[superblock.checkpoint as usize];
        let bytes = read_metadata(device, area.start, superblock.checkpoint_blocks)?;
        let changes = read_checkpoint(file, epoch, &bytes)
            .map_err(|source| TierError::Checkpoint { at: area.start, source })?;
        let mut found = Found {
            next_number: superblock.next_number,
            checkpoint_changes: changes.len() as u64,
            ..Found::default()
        };
        changes.into_iter().for_each(|change| found.apply(change));
        let area = layout.journals[superblock.journal as usize];
        let (mut index, blocks) = (0, area.blocks() as u32);
        'journal: while index < blocks {
            const AT_ONCE: u32 = 256;
            let count = AT_ONCE.min(blocks - index);
            let bytes = read_metadata(device, area.block(index), count.into())?;
            for bytes in bytes.chunks_exact(BLOCK) {
                let block = read_journal_block(bytes)
                    .filter(|block| (block.file, block.epoch, block.index) == (file, epoch, index));
                let Some(block) = block else { break 'journal };
                found.journal_blocks += 1;
                found.journal_changes += block.changes.len() as u64;
                block.changes.into_iter().for_each(|change| found.apply(change));
                index += 1;
            }
        }
        Ok(found)
    }

    fn apply(&mut self, change: Change) {
        self.next_number = self.next_number.max(change.number().saturating_add(1));
        match change {
            Change::Stored(entry) => {
                self.order += 1;
                self.entries.insert(entry.digest, (self.order, entry));
            }
            Change::Removed(digest, number) => {
                if self.entries.get(&digest).is_some_and(|(_, entry)| entry.number <= number) {
                    self.entries.remove(&digest);
                }
            }
            Change::Quarantined(extent, _) => self.quarantined.push(extent),
        }
    }

    /// Allocates the range of each value and of each quarantined part in `space`.
    pub(super) fn restore(self, space: &OffsetAllocator) -> Restored {
        // In address order, each range is placed in O(1).
        let mut ranges: Vec<(Extent, Option<(u64, Entry)>)> =
            self.quarantined.into_iter().map(|extent| (extent, None)).collect();
        ranges.extend(self.entries.into_values().map(|value| (value.1.extent(), Some(value))));
        ranges.sort_unstable_by_key(|(extent, value)| {
            // Of two in one place, the later one has overwritten the other.
            (extent.start, std::cmp::Reverse(value.map_or(u64::MAX, |(_, entry)| entry.number)))
        });
        let live = Vec::with_capacity(ranges.len());
        let mut restored = Restored { live, quarantined: Vec::new(), dropped: 0 };
        for (extent, value) in ranges {
            let start = u64::from(extent.start);
            let placed = space.allocate_raw_at(start..start + u64::from(extent.blocks));
            match (placed, value) {
                (Ok(range), Some((order, entry))) => {
                    restored.live.push((order, Indexed { entry, range: range.handle }));
                }
                (Ok(_), None) => restored.quarantined.push(extent),
                (Err(_), _) => restored.dropped += 1,
            }
        }
        restored
    }
}

/// Reads blocks of superblocks, checkpoint or journal.
fn read_metadata(device: &impl Device, at: u64, blocks: u64) -> Result<AlignedBuffer, TierError> {
    let mut buffer = AlignedBuffer::new(blocks as usize);
    device.read_at(at, &mut buffer).map_err(TierError::device("read", at))?;
    Ok(buffer)
}
