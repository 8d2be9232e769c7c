//! *Found*: what the index in a file says, read and not changed.
//!
//! The superblock with the higher generation leads to the checkpoint, which has the index of that
//! time. The blocks of the journal have the changes since then. The result is thus the state of the
//! tier at some moment not before the last checkpoint; after the end of a process, its last state.
//!
//! # Blocks of the journal that are damaged
//!
//! If a block is not whole and later ones are, the changes of the later ones are known, and are
//! made. The changes of the damaged block are not known, so each key that it may concern has no
//! value until a later change gives it one: a tier may lose a value, and never returns one that was
//! removed or replaced.
//!
//! - The later block [repeats](crate::format::Repeated) the keys of those before it: just these
//!   have no value.
//! - No whole block repeats the keys, and the damaged one was durable: no value from before it is
//!   kept.
//! - No whole block repeats the keys, and a power cut may have taken the block: the changes were
//!   not durable, and none of them is made. If it was no power cut, the block may have released the
//!   blocks of older values to others, so all older values become *unverified*.
//!
//! Opening a tier and [inspecting](super::inspect()) one both read it here.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

use kvmem::offset::{OffsetAllocator, RawHandle};

use super::encoded::namespace_of;
use super::error::TierError;
use super::journal_reader::{Gap, JournalPart, JournalReader, read_metadata};
use crate::device::{AlignedBuffer, Device};
use crate::format::{
    BLOCK, Change, Digest, Entry, Extent, JournalBlock, Layout, MAX_EXTENTS, Superblock,
    SuperblockError, read_checkpoint,
};
use crate::index::{Indexed, Ranges};

/// No value is as many times as long as the blocks of its form: memory for one is bounded.
const MAX_RATIO: u64 = 64;

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

/// Returns the copy that counts, of a device of `len` bytes. A copy of a later version means that
/// the other one may lead to an older index.
pub(super) fn valid_superblock(copies: &Copies, len: u64) -> Result<Superblock, TierError> {
    let superblock = match copies {
        [Err(newer @ SuperblockError::Version { .. }), _]
        | [_, Err(newer @ SuperblockError::Version { .. })] => {
            let [first, second] =
                copies.each_ref().map(|copy| *copy.as_ref().err().unwrap_or(newer));
            return Err(TierError::Superblocks { first, second });
        }
        [Ok(first), Ok(second)] if second.generation > first.generation => second,
        [Ok(found), _] | [_, Ok(found)] => found,
        &[Err(first), Err(second)] => return Err(TierError::Superblocks { first, second }),
    };
    if superblock.len > len {
        return Err(TierError::CutOff { expected: superblock.len, len });
    }
    Ok(superblock.clone())
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
    /// Blocks of the journal that are damaged or lost, before whole ones.
    pub(super) journal_damaged: u64,
    /// Of these, blocks whose keys are not known, and that may not have been durable.
    pub(super) journal_unknown: u64,
    /// Values that a damaged block may have removed or replaced.
    pub(super) in_doubt: u64,
    /// Bytes that were written to the file over its life: those that the superblock has, and those
    /// of the journal after it.
    pub(super) lifetime_bytes: u64,
}

/// Values that were found, with their ranges in a space.
pub(super) struct Restored {
    /// The values in address order, each with its place in the order of use.
    pub(super) live: Vec<(u64, Indexed)>,
    /// The extents not to be used, in address order, with their ranges.
    pub(super) quarantined: Vec<(Extent, RawHandle)>,
    /// Entries outside of the space, or in blocks of others.
    pub(super) dropped: u64,
}

impl Found {
    /// Returns these values, with their places in the order of use, and quarantined parts.
    pub(super) fn of(values: Vec<(u64, Entry)>, quarantined: Vec<Extent>) -> Found {
        let entries = values.into_iter().map(|(order, entry)| (entry.digest, (order, entry)));
        Found { entries: entries.collect(), quarantined, ..Found::default() }
    }

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
            // With its own two copies.
            lifetime_bytes: superblock.lifetime_bytes.saturating_add(2 * BLOCK as u64),
            ..Found::default()
        };
        changes.into_iter().for_each(|change| found.apply(change));
        let mut journal = JournalReader::new(device, superblock);
        loop {
            let is_counted = journal.index() < superblock.counted_blocks;
            match journal.next()? {
                Some(JournalPart::Block(block)) => found.replay(block, is_counted),
                Some(JournalPart::Gap(gap)) => found.bridge(gap),
                None => break,
            }
        }
        // A namespace may have been forgotten just before the process was killed.
        let is_sound = |entry: &Entry| {
            let stored = entry.extents.blocks() * BLOCK as u64;
            namespace_of(&superblock.namespaces, entry).is_ok()
                && entry.value_len() / MAX_RATIO <= stored
        };
        found.entries.retain(|_, (_, entry)| is_sound(entry));
        Ok(found)
    }

    /// Drops the values that are not encrypted; returns how many these were.
    pub(super) fn keep_encrypted(&mut self) -> u64 {
        let before = self.entries.len();
        let is_encrypted = |entry: &Entry| entry.encoded.is_some_and(|it| it.namespace() > 0);
        self.entries.retain(|_, (_, entry)| is_encrypted(entry));
        (before - self.entries.len()) as u64
    }

    /// Makes the changes of a block of the journal.
    fn replay(&mut self, block: JournalBlock, is_counted: bool) {
        self.journal_blocks += 1;
        self.journal_changes += block.changes.len() as u64;
        if !is_counted {
            let values: u64 = block.changes.iter().map(stored_blocks).sum();
            let bytes = (1 + values) * BLOCK as u64;
            self.lifetime_bytes = self.lifetime_bytes.saturating_add(bytes);
        }
        block.changes.into_iter().for_each(|change| self.apply(change));
    }

    /// Removes the values that the changes of damaged blocks may have removed or replaced.
    fn bridge(&mut self, gap: Gap) {
        let before = self.entries.len();
        self.journal_damaged += gap.blocks;
        if gap.unknown_blocks > 0 && gap.is_unknown_durable {
            self.entries.clear();
        }
        for digest in gap.keys {
            self.entries.remove(&digest);
        }
        self.in_doubt += (before - self.entries.len()) as u64;
        if gap.unknown_blocks > 0 && !gap.is_unknown_durable {
            self.journal_unknown += gap.unknown_blocks;
            self.entries.values_mut().for_each(|(_, entry)| entry.unverified = true);
        }
    }

    fn apply(&mut self, change: Change) {
        self.next_number = self.next_number.max(change.number().saturating_add(1));
        match change {
            Change::Stored(entry) | Change::Used(entry) => {
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

    /// Allocates the ranges of each value and of each quarantined part in `space`. A value of which
    /// an extent cannot be placed is dropped whole.
    pub(super) fn restore(self, space: &OffsetAllocator) -> Restored {
        let mut values: Vec<Restoring> = self.entries.into_values().map(Restoring::new).collect();
        // In address order, each range is placed in O(1).
        let quarantined =
            self.quarantined.into_iter().map(|extent| PlacedExtent { extent, of: None });
        let mut parts: Vec<PlacedExtent> = quarantined.collect();
        for (index, value) in values.iter().enumerate() {
            let of_value = value.entry.extents.iter().enumerate();
            parts.extend(of_value.map(|(place, &extent)| PlacedExtent {
                extent,
                of: Some((value.entry.number, index as u32, place as u8)),
            }));
        }
        parts.sort_unstable_by_key(|PlacedExtent { extent, of }| {
            // Of two in one place, the later one has overwritten the other.
            (extent.start, Reverse(of.map_or(u64::MAX, |(number, ..)| number)))
        });
        let mut restored = Restored { live: Vec::new(), quarantined: Vec::new(), dropped: 0 };
        for PlacedExtent { extent, of } in parts {
            let start = u64::from(extent.start);
            let placed = space.allocate_raw_at(start..start + u64::from(extent.blocks));
            match (placed, of) {
                (Ok(range), Some((_, index, place))) => {
                    values[index as usize].ranges[usize::from(place)] = Some(range.handle);
                }
                (Ok(range), None) => restored.quarantined.push((extent, range.handle)),
                (Err(_), Some(_)) => {}
                (Err(_), None) => restored.dropped += 1,
            }
        }
        values.sort_unstable_by_key(|value| value.entry.start());
        for Restoring { order, entry, ranges } in values {
            let ranges: Vec<RawHandle> = ranges.into_iter().flatten().collect();
            if ranges.len() == entry.extents.len() {
                let ranges = Ranges::of(ranges);
                restored.live.push((order, Indexed { entry, ranges }));
                continue;
            }
            restored.dropped += 1;
            for range in ranges {
                let freed = space.free_raw(range);
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
        }
        restored
    }
}

/// A value whose ranges are being allocated.
struct Restoring {
    order: u64,
    entry: Entry,
    ranges: [Option<RawHandle>; MAX_EXTENTS],
}

impl Restoring {
    fn new((order, entry): (u64, Entry)) -> Self {
        Restoring { order, entry, ranges: [None; MAX_EXTENTS] }
    }
}

/// An extent of a value: the number of its change, its place among the values, and that of the
/// extent in it. A quarantined one belongs to none.
struct PlacedExtent {
    extent: Extent,
    of: Option<(u64, u32, u8)>,
}

/// Returns the blocks of the value that a change stored.
fn stored_blocks(change: &Change) -> u64 {
    match change {
        Change::Stored(entry) => entry.extents.blocks(),
        _ => 0,
    }
}

/// Says how many blocks of a journal are damaged, and what follows from that.
pub(super) fn journal_damage(damaged: u64, unknown: u64, in_doubt: u64) -> Option<String> {
    let unknown = match unknown {
        0 => String::new(),
        _ => format!(
            "; the keys of {unknown} of them are not known: unless a power cut took them, values \
             that they removed or replaced may be found again"
        ),
    };
    (damaged > 0).then(|| {
        format!(
            "{damaged} block(s) of the journal are damaged, or a power cut took them: {in_doubt} \
             value(s) that they may have removed or replaced were dropped{unknown}"
        )
    })
}
