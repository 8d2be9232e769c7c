//! *Inspection*: what a device holds, for people and programs that must not change it.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::Path;
use std::time::UNIX_EPOCH;

use kvmem_encoding::{Envelope, KeyId};

use super::error::TierError;
use super::found::{Found, Restored, journal_damage, read_superblocks, space_of, valid_superblock};
use crate::device::{AlignedBuffer, Device, Engine, FileDevice, Read};
use crate::format::{BLOCK, Entry, Extent, Superblock, SuperblockError};

/// Values whose first blocks are read at once.
const KEYS_AT_ONCE: usize = 1024;

/// Contents of a device, as [`inspect`] found them.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Bytes of the device.
    pub device_len: u64,
    /// Both copies of the superblock.
    pub superblocks: [Result<Superblock, SuperblockError>; 2],
    /// Contents of the tier, or the error with which opening it would end.
    pub contents: Result<Contents, TierError>,
}

/// Contents of a tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Contents {
    /// The superblock that counts.
    pub superblock: Superblock,
    /// The values, in the order of their first extents.
    pub entries: Vec<Entry>,
    /// Parts of the data area that lost or falsified what was written, in address order.
    pub quarantined: Vec<Extent>,
    /// Entries that name blocks outside of the data area, or blocks of others.
    pub dropped: u64,
    /// Changes in the checkpoint.
    pub checkpoint_changes: u64,
    /// Blocks of the journal with changes after the checkpoint.
    pub journal_blocks: u64,
    /// The changes in these blocks.
    pub journal_changes: u64,
    /// Blocks of the journal that are damaged, or that a power cut took, although later ones are
    /// whole.
    pub journal_damaged: u64,
    /// Of these, blocks whose keys no whole block repeats, and that a power cut may have taken. If
    /// it did not, a value that they removed or replaced may be found again.
    pub journal_unknown: u64,
    /// Values that are not among the entries since such a block may have removed or replaced them.
    pub in_doubt: u64,
    /// Blocks of the data area that are not in use.
    pub free_blocks: u64,
    /// Blocks of the longest range that is not in use.
    pub longest_free_blocks: u64,
}

/// Lengths of values, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueLengths {
    /// The shortest.
    pub min: u64,
    /// Half of the values are at most this long.
    pub median: u64,
    /// The longest.
    pub max: u64,
}

/// Reads superblocks, checkpoint and journal of a device, and writes nothing. A tier that is open
/// must not write to the device meanwhile: [`FileDevice::open_read_only`] sees to that.
///
/// # Errors
/// [`TierError::Device`] if no copy of the superblock can be read. All else is a part of the
/// result.
///
/// [`FileDevice::open_read_only`]: crate::device::FileDevice::open_read_only
pub fn inspect(device: &impl Device) -> Result<Inspection, TierError> {
    let superblocks = read_superblocks(device)?;
    let contents = valid_superblock(&superblocks, device.len())
        .and_then(|superblock| Contents::read(device, superblock));
    Ok(Inspection { device_len: device.len(), superblocks, contents })
}

/// Returns the names of the keys with which values are encrypted, and the number of values of each.
/// Reads a block of each encrypted value; those that cannot be read are not counted.
pub fn key_ids(device: &impl Device, contents: &Contents) -> BTreeMap<KeyId, u64> {
    let data = contents.superblock.layout.data;
    let is_encrypted = |entry: &&Entry| entry.encoded.is_some_and(|one| one.namespace() > 0);
    let encrypted: Vec<&Entry> = contents.entries.iter().filter(is_encrypted).collect();
    let mut buffer = AlignedBuffer::new(encrypted.len().min(KEYS_AT_ONCE));
    let mut ids = BTreeMap::new();
    for some in encrypted.chunks(KEYS_AT_ONCE) {
        let mut reads: Vec<Read<'_>> = some
            .iter()
            .zip(buffer.chunks_exact_mut(BLOCK))
            .map(|(entry, block)| Read { at: data.block(entry.start()), parts: [block, &mut []] })
            .collect();
        device.read(&mut reads, &mut |_, read, result| {
            let seal = || Envelope::read(read.parts[0])?.seal;
            if result.is_ok()
                && let Some(seal) = seal()
            {
                *ids.entry(seal.key).or_insert(0) += 1;
            }
        });
    }
    ids
}

kvmem::stats! {
    /// Contents of the file of a disk tier. Sizes are in bytes.
    pub struct DiskTierInspection: Clone Copy Debug Default PartialEq Eq {
        /// Length of the file or block device.
        file_bytes: u64,
        /// When the file was last written to, in nanoseconds since 1970. 0 for a block device.
        modified_ns: u64,
        /// When the file was made, or first opened by a program that counts what it writes, in
        /// seconds since 1970. 0: not yet.
        since: u64,
        /// Bytes that were written to the file since then, up to the last checkpoint.
        lifetime_bytes: u64,
        /// Copies of the superblock that are valid, of two.
        superblocks: u64,
        /// The identity of the file, chosen at random when it was made.
        identity: [u8; 16],
        /// How often a superblock was written.
        generation: u64,
        /// How often a journal was begun.
        epoch: u64,
        /// Bytes of the tier: at most those of the file.
        tier_bytes: u64,
        /// Bytes for values.
        capacity: u64,
        /// Values.
        entries: u64,
        /// The most values that the tier can hold.
        max_entries: u64,
        /// Of the values, those in several ranges of the file.
        scattered: u64,
        /// Of the values, those that a power cut may have taken, and that were not read since.
        unverified_values: u64,
        /// The bytes of all values, without padding, before they were encoded.
        value_bytes: u64,
        /// The bytes that are stored of all values, without padding: with those of the values they
        /// are the ratio of compression.
        stored_bytes: u64,
        /// Of the values, those that are encoded: compressed or encrypted.
        encoded: u64,
        /// Of the values, those that are encrypted.
        encrypted: u64,
        /// Namespaces of encrypted values.
        namespaces: u64,
        /// The bytes that values use, padding included.
        used_bytes: u64,
        /// The length of the shortest value. 0 without values.
        min_bytes: u64,
        /// Half of the values are at most this long. 0 without values.
        median_bytes: u64,
        /// The length of the longest value. 0 without values.
        max_bytes: u64,
        /// Bytes that are not in use.
        free_bytes: u64,
        /// Bytes of the longest range that is not in use.
        longest_free_bytes: u64,
        /// Parts of the file that are not used any more, because what was written there was lost.
        quarantined: u64,
        /// Bytes of these parts.
        quarantined_bytes: u64,
        /// Entries that name bytes outside of the file, or bytes of others: they are no values.
        dropped: u64,
        /// Changes in the checkpoint.
        checkpoint_changes: u64,
        /// Changes in the journal, after the checkpoint.
        journal_changes: u64,
        /// Blocks of 4096 bytes that these have.
        journal_blocks: u64,
        /// Blocks of 4096 bytes that the journal can have.
        max_journal_blocks: u64,
        /// Blocks of the journal that are damaged, or that a power cut took, although later ones
        /// are whole. The changes of the later ones count.
        journal_damaged: u64,
        /// Of these, blocks whose keys no whole block repeats, and that a power cut may have taken.
        /// If it did not, a value that they removed or replaced may be found again.
        journal_unknown: u64,
        /// Values that were dropped since such a block may have removed or replaced them.
        in_doubt: u64,
        /// The version of the file's format.
        format_version: u32,
        /// Whether transfers bypass the page cache.
        direct: bool,
        /// Whether io_uring transfers the bytes; otherwise threads do, which are slower.
        has_io_uring: bool,
    }
}

impl DiskTierInspection {
    /// Returns the figures of a file or block device.
    ///
    /// # Errors
    /// The error with which opening the tier would end.
    pub fn new(
        path: &Path,
        device: &FileDevice,
        inspection: Inspection,
    ) -> Result<DiskTierInspection, TierError> {
        let modified = std::fs::metadata(path).ok().filter(Metadata::is_file);
        let modified =
            modified.and_then(|file| file.modified().ok()?.duration_since(UNIX_EPOCH).ok());
        let superblocks = inspection.superblocks.iter().flatten().count() as u64;
        let contents = inspection.contents?;
        let (superblock, layout) = (&contents.superblock, &contents.superblock.layout);
        let (encoded, encrypted) = contents.encoded();
        let lengths = contents.lengths().unwrap_or(ValueLengths { min: 0, median: 0, max: 0 });
        Ok(DiskTierInspection {
            file_bytes: inspection.device_len,
            modified_ns: modified.map_or(0, |since| since.as_nanos() as u64),
            since: superblock.since,
            lifetime_bytes: superblock.lifetime_bytes,
            superblocks,
            identity: superblock.file,
            generation: superblock.generation,
            epoch: superblock.epoch,
            tier_bytes: superblock.len,
            capacity: layout.data.len,
            entries: contents.entries.len() as u64,
            max_entries: layout.max_entries(),
            scattered: contents.scattered() as u64,
            unverified_values: contents.unverified_values() as u64,
            value_bytes: contents.value_bytes(),
            stored_bytes: contents.stored_bytes(),
            encoded: encoded as u64,
            encrypted: encrypted as u64,
            namespaces: superblock.namespaces.count() as u64,
            used_bytes: contents.used_bytes(),
            min_bytes: lengths.min,
            median_bytes: lengths.median,
            max_bytes: lengths.max,
            free_bytes: contents.free_blocks * BLOCK as u64,
            longest_free_bytes: contents.longest_free_blocks * BLOCK as u64,
            quarantined: contents.quarantined.len() as u64,
            quarantined_bytes: contents.quarantined_bytes(),
            dropped: contents.dropped,
            checkpoint_changes: contents.checkpoint_changes,
            journal_changes: contents.journal_changes,
            journal_blocks: contents.journal_blocks,
            max_journal_blocks: layout.journals[0].blocks(),
            journal_damaged: contents.journal_damaged,
            journal_unknown: contents.journal_unknown,
            in_doubt: contents.in_doubt,
            format_version: superblock.version,
            direct: device.is_direct(),
            has_io_uring: device.engine() == Engine::IoUring,
        })
    }
}

impl Contents {
    fn read(device: &impl Device, superblock: Superblock) -> Result<Contents, TierError> {
        let found = Found::read(device, &superblock)?;
        let Found { checkpoint_changes, journal_blocks, journal_changes, .. } = found;
        let Found { journal_damaged, journal_unknown, in_doubt, .. } = found;
        let space = space_of(&superblock.layout);
        let Restored { live, quarantined, dropped } = found.restore(&space);
        let metrics = space.metrics();
        Ok(Contents {
            superblock,
            entries: live.into_iter().map(|(_, indexed)| indexed.entry).collect(),
            quarantined: quarantined.into_iter().map(|(extent, _)| extent).collect(),
            dropped,
            checkpoint_changes,
            journal_blocks,
            journal_changes,
            journal_damaged,
            journal_unknown,
            in_doubt,
            free_blocks: metrics.free,
            longest_free_blocks: metrics.largest_free,
        })
    }

    /// Returns a line about the damage of the journal; `None` if there is none.
    #[must_use]
    pub fn journal_damage(&self) -> Option<String> {
        journal_damage(self.journal_damaged, self.journal_unknown, self.in_doubt)
    }

    /// Returns the bytes of all values, without padding, before they were encoded. O(values).
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        self.entries.iter().map(Entry::value_len).sum()
    }

    /// Returns the bytes that are stored of all values, without padding. O(values).
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len).sum()
    }

    /// Returns the number of values that are encoded, and of those that are encrypted. O(values).
    #[must_use]
    pub fn encoded(&self) -> (usize, usize) {
        let encoded = || self.entries.iter().filter_map(|entry| entry.encoded);
        (encoded().count(), encoded().filter(|one| one.namespace() > 0).count())
    }

    /// Returns the bytes of the blocks of all values. O(values).
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.extents.blocks() * BLOCK as u64).sum()
    }

    /// Returns the number of values in several extents. O(values).
    #[must_use]
    pub fn scattered(&self) -> usize {
        self.entries.iter().filter(|entry| entry.extents.is_scattered()).count()
    }

    /// Returns the number of values whose bytes a power cut may have taken: they were written
    /// without a sync, by a process that was killed before the next checkpoint, and were not read
    /// since. O(values).
    #[must_use]
    pub fn unverified_values(&self) -> usize {
        self.entries.iter().filter(|entry| entry.unverified).count()
    }

    /// Returns the bytes of the quarantined parts. O(parts).
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        self.quarantined.iter().map(|extent| u64::from(extent.blocks) * BLOCK as u64).sum()
    }

    /// Returns the share of the data area that values occupy, without padding, in 0..=1.
    /// O(values).
    #[must_use]
    pub fn utilization(&self) -> f64 {
        self.stored_bytes() as f64 / self.superblock.layout.data.len as f64
    }

    /// Returns the lengths of the values; `None` without values. O(values).
    #[must_use]
    pub fn lengths(&self) -> Option<ValueLengths> {
        let mut lengths: Vec<u64> = self.entries.iter().map(Entry::value_len).collect();
        let middle = lengths.len().checked_sub(1)? / 2;
        let (shorter, &mut median, longer) = lengths.select_nth_unstable(middle);
        let min = shorter.iter().min().copied().unwrap_or(median);
        let max = longer.iter().max().copied().unwrap_or(median);
        Some(ValueLengths { min, median, max })
    }
}
