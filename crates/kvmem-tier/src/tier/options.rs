//! *Options* of a tier.

use std::sync::Arc;

use kvmem_encoding::{Codec, Keyring};

use super::admission::Admission;
use crate::format::{BLOCK, Layout, RECORDS_PER_BLOCK, UNENCODED_VERSION, VERSION};

/// When the checksums of the values are verified, besides at every fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verify {
    /// Never: opening reads the index alone.
    #[default]
    Lazy,
    /// Opening reads every value, and removes those that are damaged.
    All,
}

/// The order in which a full tier evicts, of values with the same priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EvictionOrder {
    /// Values used least recently come first. A fetch is a use.
    #[default]
    Lru,
    /// Values stored first come first.
    Fifo,
}

/// How a tier is opened.
#[derive(Clone, Debug, Default)]
pub struct DiskTierOptions {
    /// Bytes of the file, which becomes as long, with its space allocated. A longer one is cut off:
    /// values that have no room any more are evicted, those used least recently first, and values
    /// behind the new end are copied before it, which takes the time of reading and writing them.
    /// The number of values that fit does not change. By default the length of a file does not
    /// change, and that of a block device never does.
    pub bytes: Option<u64>,
    /// Transfers that one thread has in flight, at most. By default 32. For measurements.
    #[doc(hidden)]
    pub depth: Option<u32>,
    /// The most values that it can hold; fixed when the file is made. The file has 260 bytes for
    /// each. By default one for each 32 KiB of the device.
    pub max_entries: Option<u64>,
    /// Bytes of each of the two journals; fixed when the file is made. For tests. A checkpoint is
    /// written when one is nearly full. By default 1/64 of the device, at most 4 MiB, but as long
    /// as a checkpoint of [`max_entries`](Self::max_entries): checkpoints then write at most 4/3 of
    /// what the journal does.
    #[doc(hidden)]
    pub journal_bytes: Option<u64>,
    /// Opens the file with `O_DSYNC`: a value survives a power cut as soon as it is stored, without
    /// [`sync_all`](super::DiskTier::sync_all), and blocks of evicted values are free without a
    /// sync. Each store waits until the drive has its bytes and the journal's block on the medium;
    /// on a drive without power-loss protection that takes milliseconds. Store many values by one
    /// call then. By default a sync makes values durable. A tier [on](super::DiskTier::on) a device
    /// is as that device was opened.
    pub dsync: bool,
    /// Makes a new tier of a device that holds something else, or a damaged tier. Everything on it
    /// is lost.
    pub format: bool,
    /// The values to verify at once.
    pub verify: Verify,
    /// Which of the values that a cache above evicts are written: all, those that are evicted a
    /// second time, or those that a function of the program chooses. Values that a program
    /// [stores](super::DiskTier::store) itself are always written.
    pub admission: Admission,
    /// Which values a full tier evicts first. The file does not contain it.
    pub eviction: EvictionOrder,
    /// Limits the bytes that are written per second: of values, journal, checkpoints and
    /// superblocks. An evicted value that comes when they are used up is dropped. Values that a
    /// program [stores](super::DiskTier::store) itself are always written, and count: evicted ones
    /// wait for the rate to make up for them. A drive that is made for 1 DWPD (drive writes per
    /// day) lasts its time with a 86,400th of its size.
    pub max_write_bytes_per_s: Option<u64>,
    /// How values are compressed before they are written. They are read whatever this says. With a
    /// codec or with [`keys`](Self::keys), the file becomes one of version 3, which older programs
    /// do not read.
    pub codec: Codec,
    /// The keys that encrypt values, after they are compressed: the first one writes, and each one
    /// reads. Values that were stored without encryption are dropped when the tier is opened:
    /// others could have written them. By default values are not encrypted, and those that are
    /// encrypted are misses.
    pub keys: Option<Arc<Keyring>>,
    /// Opens a tier that a process of another host had open, which was killed or whose host has
    /// ended. Without it such a tier is an [error](super::TierError::Owned): two processes that
    /// write to one tier destroy it. A process of this host that has ended needs no such word.
    pub take_over: bool,
}

/// Transfers that one thread has in flight by default.
pub(super) const DEFAULT_DEPTH: u32 = 32;

/// The least blocks of a journal.
const MIN_JOURNAL: u64 = 4;

impl DiskTierOptions {
    /// Returns the least version of the file: that of one with encoded values, if there may be any.
    pub(super) fn version(&self) -> u32 {
        let encodes = self.codec != Codec::None || self.keys.is_some();
        if encodes { VERSION } else { UNENCODED_VERSION }
    }

    /// Returns the number of entries and the blocks of a journal of a device of `len` bytes.
    pub(super) fn sizes(&self, len: u64) -> (u64, u64) {
        let entries = self.max_entries.unwrap_or(len / (32 << 10)).max(RECORDS_PER_BLOCK as u64);
        // A journal that is much shorter than the checkpoint that it leads to would be full again
        // before values of as many bytes are written.
        let checkpoint = entries.div_ceil(RECORDS_PER_BLOCK as u64);
        let default = || ((len / 64).min(4 << 20) / BLOCK as u64).max(checkpoint);
        let journal = self.journal_bytes.map_or_else(default, |bytes| bytes / BLOCK as u64);
        (entries, journal.clamp(MIN_JOURNAL, u64::from(u32::MAX)))
    }

    /// Returns the bytes of the shortest device that has a block for values; `u64::MAX` if none is
    /// long enough.
    pub(super) fn min_len(&self) -> u64 {
        let fits = |len: u64| {
            let (entries, journal) = self.sizes(len);
            Layout::of(len, entries, journal).is_some()
        };
        // Of a longer device the index and the journals take a smaller share.
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_as_long_as_a_checkpoint() {
        for len in (20..44).map(|bits| 1_u64 << bits) {
            for max_entries in [None, Some(100), Some(10_000_000)] {
                let options = DiskTierOptions { max_entries, ..DiskTierOptions::default() };
                let (entries, journal) = options.sizes(len);
                assert!(journal >= entries.div_ceil(RECORDS_PER_BLOCK as u64), "{len}");
                if max_entries.is_none() {
                    let layout = Layout::of(len, entries, journal).expect("it has room for data");
                    let share = 1.0 - layout.data.len as f64 / len as f64;
                    assert!(share < if len < 1 << 30 { 0.06 } else { 0.017 }, "{len}: {share}");
                }
            }
        }
    }
}
