//! *Open*: makes a tier, or finds what was in it.
//!
//! [`Found`] reads the file. A new checkpoint is written before the first change, so blocks of an
//! old journal are never taken for those of a new one. A [blank](super::blank) file is what a
//! process leaves that was killed before it had made the tier: it is made then.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, RwLock};
use std::thread;

use kvmem_encoding::Encoding;

use super::admission::Doorkeeper;
use super::blank::is_blank;
use super::bounce::BounceBuffers;
use super::encoded::StreamBuffers;
use super::error::TierError;
use super::found::{Found, Restored, journal_damage, read_superblocks, space_of, valid_superblock};
use super::journal::Journal;
use super::options::{DEFAULT_DEPTH, DiskTierOptions, Verify};
use super::origins::Origins;
use super::ownership::{check_before_opening, random, this_process};
use super::resize::resized;
use super::state::State;
use super::tier::{DiskTier, ORDERS};
use super::verification::{Damage, DamagedValue, verify_entries};
use crate::device::{Device, Engine, FileDevice};
use crate::format::{Entry, Layout, Namespaces, Superblock, SuperblockError};
use crate::index::seconds_now;
use crate::process::Process;
use crate::trace::{event, span};

kvmem::stats! {
    /// What opening a disk tier found.
    pub struct OpenReport: Clone Copy Debug Default PartialEq Eq {
        /// Whether the tier was made just now.
        created: bool,
        /// Values found.
        entries: u64,
        /// Changes that the journal had since the last checkpoint.
        replayed: u64,
        /// Entries that name bytes outside of the file, or bytes of others: they were dropped.
        dropped: u64,
        /// Values that were dropped because they are not encrypted, and the tier was opened with
        /// keys.
        unencrypted: u64,
        /// Values that the verification of all found damaged, and removed.
        damaged: u64,
        /// Blocks of the journal that are damaged, or that a power cut took, although later ones
        /// are whole. The changes of the later ones count.
        journal_damaged: u64,
        /// Of these, blocks whose keys no whole block repeats, and that a power cut may have taken.
        /// If it did not, a value that they removed or replaced may be found again.
        journal_unknown: u64,
        /// Values that were dropped since such a block may have removed or replaced them.
        in_doubt: u64,
        /// Whether transfers of a file bypass the page cache.
        direct: bool,
        /// Whether io_uring transfers the bytes of a file; otherwise threads do, which are slower.
        has_io_uring: bool,
    }
}

impl OpenReport {
    /// Returns a line about the damage of the journal; `None` if there is none.
    #[must_use]
    pub fn journal_damage(&self) -> Option<String> {
        journal_damage(self.journal_damaged, self.journal_unknown, self.in_doubt)
    }
}

impl DiskTier<FileDevice> {
    /// Opens the tier in a file or on a block device, and makes it if the file is new, or has
    /// nothing but zeros.
    ///
    /// # Errors
    /// [`TierError`]. Nothing is overwritten then; if the device fails while the tier becomes
    /// shorter, it may have evicted values.
    pub fn open(
        path: impl AsRef<Path>,
        options: &DiskTierOptions,
    ) -> Result<(Self, OpenReport), TierError> {
        let (len, depth) = (options.bytes.unwrap_or(0), options.depth.unwrap_or(DEFAULT_DEPTH));
        let path = path.as_ref();
        span!(INFO, "open_tier", path = %path.display());
        // Checked first: a file that was made too short would not be new the next time.
        if std::fs::metadata(path).map_or(true, |found| found.is_file() && found.len() == 0)
            && len > 0
        {
            layout(len, options)?;
        }
        let open = if options.dsync { FileDevice::open_dsync } else { FileDevice::open };
        let device = open(path, len, depth).map_err(TierError::open)?;
        if device.engine() == Engine::Threads {
            event!(WARN, "this process may not use io_uring: threads transfer the bytes");
        }
        if !device.is_direct() {
            event!(WARN, "the file system has no direct I/O: bytes go through the page cache");
        }
        let (direct, has_io_uring) = (device.is_direct(), device.engine() == Engine::IoUring);
        let (tier, report) = DiskTier::on(device, options)?;
        Ok((tier, OpenReport { direct, has_io_uring, ..report }))
    }
}

impl<D: Device> DiskTier<D> {
    /// Opens the tier on a device, and makes it if the device is new or has nothing but zeros, or
    /// if `options` say so.
    ///
    /// # Errors
    /// [`TierError`]. Nothing is overwritten then; if the device fails while the tier becomes
    /// shorter, it may have evicted values.
    pub fn on(device: D, options: &DiskTierOptions) -> Result<(Self, OpenReport), TierError> {
        if device.is_new() {
            return Self::create(device, options);
        }
        if options.format {
            let found = read_superblocks(&device).ok();
            let found = found.and_then(|copies| valid_superblock(&copies, device.len()).ok());
            if let Some(superblock) = found {
                check_before_opening(&device, &superblock, options.take_over)?;
            }
            return Self::create(device, options);
        }
        let superblock = match valid_superblock(&read_superblocks(&device)?, device.len()) {
            Err(TierError::Superblocks {
                first: SuperblockError::Foreign,
                second: SuperblockError::Foreign,
            }) if is_blank(&device) => return Self::create(device, options),
            found => found?,
        };
        check_before_opening(&device, &superblock, options.take_over)?;
        let len = Self::wanted_len(&device, options);
        if let Some(len) = len {
            resized(&superblock.layout, len)?;
        }
        let mut found = Found::read(&device, &superblock)?;
        let unencrypted = match options.keys {
            Some(_) => found.keep_encrypted(),
            None => 0,
        };
        let superblock = Superblock {
            version: superblock.version.max(options.version()),
            lifetime_bytes: found.lifetime_bytes,
            since: if superblock.since > 0 { superblock.since } else { seconds_now().into() },
            ..superblock
        };
        let mut report = OpenReport {
            replayed: found.journal_changes,
            journal_damaged: found.journal_damaged,
            journal_unknown: found.journal_unknown,
            in_doubt: found.in_doubt,
            unencrypted,
            ..OpenReport::default()
        };
        let mut tier = Self::with_superblock(device, superblock, options)?;
        report.dropped = tier.restore(found);
        tier.first_checkpoint()?;
        if options.verify == Verify::All {
            report.damaged = tier.verify_all()?;
        }
        if let Some(len) = len {
            tier.resize(len)?;
        }
        report.entries = tier.state().index.len() as u64;
        if report.unencrypted > 0 {
            event!(WARN, report.unencrypted, "values that are not encrypted were dropped");
        }
        if report.dropped + report.damaged > 0 {
            event!(WARN, report.dropped, report.damaged, "entries were dropped, values removed");
        }
        if let Some(_damage) = report.journal_damage() {
            event!(WARN, %_damage, "the journal is damaged");
        }
        Ok((tier, report))
    }

    /// Returns the length that the device is to have, at most its own. 0 stands for its own.
    fn wanted_len(device: &D, options: &DiskTierOptions) -> Option<u64> {
        let len = options.bytes.filter(|&len| len > 0 && device.can_be_cut());
        len.map(|len| len.min(device.len()))
    }

    fn create(mut device: D, options: &DiskTierOptions) -> Result<(Self, OpenReport), TierError> {
        let len = Self::wanted_len(&device, options).unwrap_or(device.len());
        let layout = layout(len, options)?;
        if len < device.len() {
            device.cut(len).map_err(TierError::device("cut off", len))?;
        }
        let superblock = Superblock {
            version: options.version(),
            file: random(),
            key: random(),
            generation: 0,
            epoch: 0,
            journal: 0,
            checkpoint: 0,
            checkpoint_blocks: 1,
            next_number: 0,
            len,
            lifetime_bytes: 0,
            since: seconds_now().into(),
            counted_blocks: 0,
            layout,
            owner: None,
            namespaces: Namespaces::default(),
        };
        let tier = Self::with_superblock(device, superblock, options)?;
        tier.first_checkpoint()?;
        Ok((tier, OpenReport { created: true, ..OpenReport::default() }))
    }

    fn with_superblock(
        device: D,
        superblock: Superblock,
        options: &DiskTierOptions,
    ) -> Result<Self, TierError> {
        let encoding = Encoding::new(options.codec, options.keys.clone());
        let encoding = encoding.map_err(TierError::Encode)?;
        let Superblock { key, layout, next_number, lifetime_bytes, since, .. } = superblock;
        let mut state = State::new(next_number, options.eviction);
        (state.lifetime_before, state.since) = (lifetime_bytes, since);
        Ok(DiskTier {
            device,
            encoding,
            namespaces: RwLock::new(superblock.namespaces.clone()),
            streams: StreamBuffers::default(),
            processors: thread::available_parallelism().map_or(1, NonZero::get),
            encode_ns: AtomicU64::new(0),
            decode_ns: AtomicU64::new(0),
            key,
            layout,
            space: space_of(&layout),
            state: Mutex::new(state),
            failed: Mutex::new(None),
            store_errors: Mutex::new(None),
            doorkeeper: Doorkeeper::new(
                options.admission.clone(),
                layout.max_entries(),
                options.max_write_bytes_per_s,
            ),
            bounce: BounceBuffers::default(),
            process: Process::this(),
            owner: this_process(),
            origins: Origins::new(),
            orders: [const { Mutex::new(()) }; ORDERS],
            journal: Mutex::new(Journal::new(superblock)),
        })
    }

    /// Puts what was found into the index and the space; returns the number of entries that were
    /// dropped.
    fn restore(&self, found: Found) -> u64 {
        let mut state = self.state();
        state.next_number = found.next_number;
        let Restored { mut live, quarantined, dropped } = found.restore(&self.space);
        state.quarantined = quarantined;
        live.sort_unstable_by_key(|&(order, _)| order);
        live.into_iter().for_each(|(_, indexed)| state.add(indexed));
        // The journal may end between a value and the removal of the one that it was one too many
        // with.
        while state.index.len() as u64 > self.max_entries(&state) {
            state.evict();
        }
        dropped
    }

    /// Reads every value, and removes those that are damaged; returns how many these were.
    fn verify_all(&self) -> Result<u64, TierError> {
        let mut entries: Vec<Entry> = self.state().index.entries().collect();
        entries.sort_unstable_by_key(Entry::start);
        let damaged = verify_entries(&self.device, self.layout.data, &entries, |_| {});
        let position = {
            let mut state = self.state();
            for DamagedValue { entry, damage, bad } in &damaged {
                if let Damage::Device(error) = damage {
                    state.count_unreadable(error.kind());
                    state.quarantine(entry, *bad);
                } else {
                    state.remove_falsified(entry);
                }
            }
            for entry in &entries {
                state.index.set_verified(&entry.digest);
            }
            state.position()
        };
        self.commit(position)?;
        Ok(damaged.len() as u64)
    }
}

/// Divides a new device of `len` bytes.
fn layout(len: u64, options: &DiskTierOptions) -> Result<Layout, TierError> {
    let (max_entries, journal_blocks) = options.sizes(len);
    Layout::of(len, max_entries, journal_blocks).ok_or_else(|| TierError::TooSmall {
        len,
        min: options.min_len(),
        max_entries,
    })
}
