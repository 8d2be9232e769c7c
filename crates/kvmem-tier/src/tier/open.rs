//! *Open*: makes a tier, or finds what was in it.
//!
//! The superblock with the higher generation leads to the checkpoint, which has the index of that
//! time. The blocks of the journal, read until one is missing, have the changes since then. What
//! the tier holds afterwards is thus what it held at some moment not before the last checkpoint;
//! after the end of a process, what it held last. A new checkpoint is written before the first
//! change, so blocks of an old journal are never taken for those of a new one.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use kvmem::offset::OffsetAllocator;

use super::admission::Doorman;
use super::error::TierError;
use super::journal::Journal;
use super::options::{TierOptions, Verify};
use super::state::State;
use super::tier::{DiskTier, ORDERS};
use crate::device::{AlignedBuffer, Device, FileDevice, Read};
use crate::format::{
    BLOCK, Change, Digest, Entry, Extent, Layout, Superblock, SuperblockError, read_checkpoint,
    read_journal_block,
};
use crate::index::Indexed;

/// What opening a tier found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenReport {
    /// Whether the tier was made just now.
    pub created: bool,
    /// Values found.
    pub entries: u64,
    /// Changes that the journal had since the last checkpoint.
    pub replayed: u64,
    /// Entries that name blocks outside of the data area, or blocks of others: they were dropped.
    pub dropped: u64,
    /// Values that [`Verify::All`] found damaged, and removed.
    pub damaged: u64,
}

impl DiskTier<FileDevice> {
    /// Opens the tier in a file or on a block device, and makes it if the file is new. A new or
    /// shorter file becomes `len` bytes long. A thread has up to `depth` transfers in flight.
    ///
    /// # Errors
    /// [`TierError`]: see there. Nothing is overwritten then.
    pub fn open(
        path: &Path,
        len: u64,
        depth: u32,
        options: &TierOptions,
    ) -> Result<(Self, OpenReport), TierError> {
        let device = FileDevice::open(path, len, depth).map_err(TierError::device("open", 0))?;
        DiskTier::on(device, options)
    }
}

impl<D: Device> DiskTier<D> {
    /// Opens the tier on a device, and makes it if the device is new or `options` say so.
    ///
    /// # Errors
    /// [`TierError`]: see there. Nothing is overwritten then.
    pub fn on(device: D, options: &TierOptions) -> Result<(Self, OpenReport), TierError> {
        if options.format || device.is_new() {
            return Self::create(device, options);
        }
        let superblock = find_superblock(&device)?;
        let mut report = OpenReport::default();
        let tier = Self::with_superblock(device, superblock, options);
        let found = tier.read_index(&superblock, &mut report)?;
        tier.restore(found, &mut report);
        tier.checkpoint()?;
        if options.verify == Verify::All {
            report.damaged = tier.verify_all()?;
        }
        report.entries = tier.state().index.len() as u64;
        Ok((tier, report))
    }

    fn create(device: D, options: &TierOptions) -> Result<(Self, OpenReport), TierError> {
        let len = device.len();
        let (max_entries, journal_blocks) = options.sizes(len);
        let layout = Layout::of(len, max_entries, journal_blocks)
            .ok_or(TierError::TooSmall { len, max_entries })?;
        let superblock = Superblock {
            file: random(),
            key: random(),
            generation: 0,
            epoch: 0,
            journal: 0,
            checkpoint: 0,
            checkpoint_blocks: 1,
            next_number: 0,
            len,
            layout,
        };
        let tier = Self::with_superblock(device, superblock, options);
        tier.checkpoint()?;
        Ok((tier, OpenReport { created: true, ..OpenReport::default() }))
    }

    fn with_superblock(device: D, superblock: Superblock, options: &TierOptions) -> Self {
        let Superblock { key, layout, next_number, .. } = superblock;
        let space = OffsetAllocator::new(layout.data.blocks())
            .expect("a layout has at least one block for data, and fewer than 2^32");
        DiskTier {
            device,
            key,
            layout,
            space,
            state: Mutex::new(State::new(next_number)),
            failed: OnceLock::new(),
            doorman: Doorman::new(
                options.admission,
                layout.max_entries(),
                options.max_write_bytes_per_s,
            ),
            orders: [const { Mutex::new(()) }; ORDERS],
            journal: Mutex::new(Journal::new(superblock)),
        }
    }

    /// Reads the checkpoint and the journal; returns the entries, and the extents not to be used.
    fn read_index(
        &self,
        superblock: &Superblock,
        report: &mut OpenReport,
    ) -> Result<Found, TierError> {
        let Superblock { file, epoch, layout, .. } = *superblock;
        let area = layout.checkpoints[superblock.checkpoint as usize];
        let bytes = self.read_metadata(area.start, superblock.checkpoint_blocks)?;
        let entries = read_checkpoint(file, epoch, &bytes)
            .map_err(|source| TierError::Checkpoint { at: area.start, source })?;
        let mut found = Found { next_number: superblock.next_number, ..Found::default() };
        entries.into_iter().for_each(|entry| found.apply(entry));
        let area = layout.journals[superblock.journal as usize];
        let (mut index, blocks) = (0, area.blocks() as u32);
        'journal: while index < blocks {
            const AT_ONCE: u32 = 256;
            let count = AT_ONCE.min(blocks - index);
            let bytes = self.read_metadata(area.block(index), count.into())?;
            for bytes in bytes.chunks_exact(BLOCK) {
                let block = read_journal_block(bytes)
                    .filter(|block| (block.file, block.epoch, block.index) == (file, epoch, index));
                let Some(block) = block else { break 'journal };
                report.replayed += block.changes.len() as u64;
                block.changes.into_iter().for_each(|change| found.apply(change));
                index += 1;
            }
        }
        Ok(found)
    }

    fn read_metadata(&self, at: u64, blocks: u64) -> Result<AlignedBuffer, TierError> {
        let mut buffer = AlignedBuffer::new(blocks as usize);
        read_at(&self.device, at, &mut buffer)?;
        Ok(buffer)
    }

    /// Puts what was found into the index and the space.
    fn restore(&self, found: Found, report: &mut OpenReport) {
        let Found { entries, quarantined, next_number, .. } = found;
        let mut state = self.state();
        state.next_number = next_number;
        // In address order, each range is placed in O(1).
        let mut ranges: Vec<(Extent, Option<Entry>)> =
            quarantined.into_iter().map(|extent| (extent, None)).collect();
        ranges.extend(entries.values().map(|&(_, entry)| (entry.extent(), Some(entry))));
        ranges.sort_unstable_by_key(|(extent, entry)| {
            // Of two in one place, the later one has overwritten the other.
            (extent.start, std::cmp::Reverse(entry.map_or(u64::MAX, |entry| entry.number)))
        });
        let mut live = Vec::with_capacity(ranges.len());
        for (extent, entry) in ranges {
            let start = u64::from(extent.start);
            let placed = self.space.allocate_raw_at(start..start + u64::from(extent.blocks));
            match (placed, entry) {
                (Ok(range), Some(entry)) => live.push(Indexed { entry, range: range.handle }),
                (Ok(_), None) => state.quarantined.push(extent),
                (Err(_), _) => report.dropped += 1,
            }
        }
        let order = |indexed: &Indexed| entries.get(&indexed.entry.digest).map(|&(order, _)| order);
        live.sort_unstable_by_key(order);
        live.into_iter().for_each(|indexed| state.add(indexed));
        // The journal may end between a value and the removal of the one that it was one too many
        // with.
        while state.index.len() as u64 > self.max_entries(&state) {
            state.evict();
        }
    }

    /// Reads every value, and removes those that are damaged; returns how many these were.
    fn verify_all(&self) -> Result<u64, TierError> {
        let entries: Vec<Entry> = self.state().index.entries().collect();
        let mut damaged = 0;
        for entry in entries {
            let mut buffer = AlignedBuffer::new(entry.extent().blocks as usize);
            let at = self.layout.data.block(entry.start);
            let read = read_at(&self.device, at, &mut buffer);
            let value = &buffer[..entry.len as usize];
            if read.is_err() || super::tier::checksum(&entry.digest, value) != entry.checksum {
                damaged += 1;
                let mut state = self.state();
                match read {
                    Err(_) => state.stats.io_misses += 1,
                    Ok(()) => state.stats.checksum_misses += 1,
                }
                state.quarantine(&entry);
            }
        }
        let position = self.state().position();
        self.commit(position)?;
        Ok(damaged)
    }
}

/// What checkpoint and journal say.
#[derive(Default)]
struct Found {
    /// The values with their places in the order of use, as far as the file has it.
    entries: HashMap<Digest, (u64, Entry)>,
    /// The next place in that order.
    order: u64,
    quarantined: Vec<Extent>,
    next_number: u64,
}

impl Found {
    fn apply(&mut self, change: Change) {
        self.next_number = self.next_number.max(change.number() + 1);
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
}

/// Returns the superblock that counts.
fn find_superblock(device: &impl Device) -> Result<Superblock, TierError> {
    let len = device.len();
    let read = |copy: u64| -> Result<Result<Superblock, SuperblockError>, TierError> {
        if len < (copy + 1) * BLOCK as u64 {
            return Ok(Err(SuperblockError::Foreign));
        }
        let mut buffer = AlignedBuffer::new(1);
        read_at(device, copy * BLOCK as u64, &mut buffer)?;
        let bytes = buffer.first_chunk().expect("the buffer is a block");
        Ok(Superblock::from_bytes(bytes))
    };
    let superblock = match (read(0)?, read(1)?) {
        (Ok(first), Ok(second)) if second.generation > first.generation => second,
        (Ok(found), _) | (_, Ok(found)) => found,
        (Err(first), Err(second)) => return Err(TierError::Superblocks { first, second }),
    };
    if superblock.len > len {
        return Err(TierError::CutOff { expected: superblock.len, len });
    }
    Ok(superblock)
}

fn read_at(device: &impl Device, at: u64, bytes: &mut [u8]) -> Result<(), TierError> {
    let mut reads = [Read { at, parts: [bytes, &mut []] }];
    device.read(&mut reads).remove(0).map_err(TierError::device("read", at))
}

/// Returns random bytes. They keep apart what two files wrote, and the digests of their keys; no
/// secret depends on them.
fn random() -> [u8; 16] {
    let word = || RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let (low, high) = (word(), word());
    std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] })
}
