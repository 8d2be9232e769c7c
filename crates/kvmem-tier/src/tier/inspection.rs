//! *Inspection*: what a device holds, for people and programs that must not change it.

use super::error::TierError;
use super::found::{Found, Restored, journal_damage, read_superblocks, space_of, valid_superblock};
use crate::device::Device;
use crate::format::{BLOCK, Entry, Extent, Superblock, SuperblockError};

/// What a device holds, as [`inspect`] found it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Bytes of the device.
    pub device_len: u64,
    /// Both copies of the superblock.
    pub superblocks: [Result<Superblock, SuperblockError>; 2],
    /// What the tier holds, or the error with which opening it would end.
    pub contents: Result<Contents, TierError>,
}

/// What a tier holds.
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

    /// Returns the bytes of all values, without padding. O(values).
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len).sum()
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
        self.value_bytes() as f64 / self.superblock.layout.data.len as f64
    }

    /// Returns the lengths of the values; `None` without values. O(values).
    #[must_use]
    pub fn lengths(&self) -> Option<ValueLengths> {
        let mut lengths: Vec<u64> = self.entries.iter().map(|entry| entry.len).collect();
        let middle = lengths.len().checked_sub(1)? / 2;
        let (shorter, &mut median, longer) = lengths.select_nth_unstable(middle);
        let min = shorter.iter().min().copied().unwrap_or(median);
        let max = longer.iter().max().copied().unwrap_or(median);
        Some(ValueLengths { min, median, max })
    }
}
