//! *Tier inspection*: what the file of a disk tier holds, and whether its values are those that
//! were stored. The command `kvmem tier` reports the same.

use std::ffi::{c_char, c_void};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Instant, UNIX_EPOCH};

use kvmem_tier::device::{Engine, FileDevice};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{Damage, DamagedValue, Inspection, inspect, verify_until};

use crate::call::{elements, guard, out, some_text};
use crate::cancel::{kvmem_cancel, token};
use crate::disk_tier::depth_of;
use crate::error::CallError;
use crate::progress::{
    KVMEM_PHASE_VERIFY, ProgressCallback, kvmem_progress, kvmem_progress_fn, nanoseconds,
};
use crate::promise::ObjectPromise;
use crate::status::*;

/// What the file of a disk tier holds. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_inspection {
    /// Bytes of the file or block device.
    pub file_bytes: u64,
    /// When the file was last written to, in nanoseconds since 1970. 0 for a block device.
    pub modified_ns: u64,
    /// When the file was made, or first opened by a program that counts what it writes, in seconds
    /// since 1970. 0: not yet.
    pub since: u64,
    /// Bytes that were written to the file since then, up to the last checkpoint.
    pub lifetime_bytes: u64,
    /// Copies of the superblock that are valid, of two.
    pub superblocks: u64,
    /// The identity of the file, chosen at random when it was made.
    pub identity: [u8; 16],
    /// How often a superblock was written.
    pub generation: u64,
    /// How often a journal was begun.
    pub epoch: u64,
    /// Bytes of the tier: at most those of the file.
    pub tier_bytes: u64,
    /// Bytes for values.
    pub capacity: u64,
    /// Values.
    pub entries: u64,
    /// The most values that the tier can hold.
    pub max_entries: u64,
    /// Of the values, those in several ranges of the file.
    pub scattered: u64,
    /// Of the values, those that a power cut may have taken, and that were not read since.
    pub unverified_values: u64,
    /// The bytes of all values, without padding.
    pub value_bytes: u64,
    /// The bytes that values use, padding included.
    pub used_bytes: u64,
    /// The length of the shortest value. 0 without values.
    pub min_bytes: u64,
    /// Half of the values are at most this long. 0 without values.
    pub median_bytes: u64,
    /// The length of the longest value. 0 without values.
    pub max_bytes: u64,
    /// Bytes that are not in use.
    pub free_bytes: u64,
    /// Bytes of the longest range that is not in use.
    pub longest_free_bytes: u64,
    /// Parts of the file that are not used any more, because what was written there was lost.
    pub quarantined: u64,
    /// Bytes of these parts.
    pub quarantined_bytes: u64,
    /// Entries that name bytes outside of the file, or bytes of others: they are no values.
    pub dropped: u64,
    /// Changes in the checkpoint.
    pub checkpoint_changes: u64,
    /// Changes in the journal, after the checkpoint.
    pub journal_changes: u64,
    /// Blocks of 4096 bytes that these have.
    pub journal_blocks: u64,
    /// Blocks of 4096 bytes that the journal can have.
    pub max_journal_blocks: u64,
    /// Blocks of the journal that are damaged, or that a power cut took, although later ones are
    /// whole. The changes of the later ones count.
    pub journal_damaged: u64,
    /// Of these, blocks whose keys no whole block repeats, and that a power cut may have taken. If
    /// it did not, a value that they removed or replaced may be found again.
    pub journal_unknown: u64,
    /// Values that were dropped since such a block may have removed or replaced them.
    pub in_doubt: u64,
    /// The version of the file's format.
    pub format_version: u32,
    /// Whether transfers bypass the page cache: 1 or 0.
    pub is_direct: u32,
    /// Whether io_uring transfers the bytes: 1; or threads, which are slower: 0.
    pub has_io_uring: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Damage: the bytes on the drive are not those that were stored.
pub const KVMEM_DAMAGE_CHECKSUM: u32 = 0;
/// Damage: the drive failed to read them.
pub const KVMEM_DAMAGE_DEVICE: u32 = 1;

/// A value that is not what was stored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_damaged_value {
    /// The digest of the value's key.
    pub digest: [u8; 16],
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// In how many ranges of the file it lies.
    pub ranges: u32,
    /// KVMEM_DAMAGE_CHECKSUM or KVMEM_DAMAGE_DEVICE.
    pub damage: u32,
    /// The system's error number, with KVMEM_DAMAGE_DEVICE; otherwise 0, and 0 if there is none.
    pub os_error: i32,
    /// Whether a power cut may have taken the value before a sync: 1 or 0. If so, the drive is
    /// sound, and a fetch makes its bytes free again.
    pub is_unverified: u32,
}

/// What a verification has found. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_verification {
    /// Values read.
    pub entries: u64,
    /// Bytes read, padding included.
    pub bytes: u64,
    /// How long that took, in nanoseconds.
    pub elapsed_ns: u64,
    /// Values that are not what was stored. A fetch of one is a miss.
    pub damaged: u64,
    /// Entries that name bytes outside of the file, or bytes of others: they are no values.
    pub dropped: u64,
}

/// Opens a file to read it, and reads its index.
fn inspected(path: &str, depth: u32) -> Result<(FileDevice, Inspection), CallError> {
    let device = FileDevice::open_read_only(Path::new(path), depth).map_err(|error| {
        let status = match error.kind() {
            io::ErrorKind::WouldBlock => KVMEM_ERR_IN_USE,
            io::ErrorKind::InvalidInput => KVMEM_ERR_INVALID_ARGUMENT,
            _ => KVMEM_ERR_SYSTEM,
        };
        CallError::new(status, format_args!("cannot open {path}: {error}"))
    })?;
    let inspection = inspect(&device)?;
    Ok((device, inspection))
}

/// Returns when a file was last written to; 0 for a block device.
fn modified_ns(path: &str) -> u64 {
    let time = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    let time = time.and_then(|of_file| of_file.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    time.map_or(0, nanoseconds)
}

/// Reads what the file or block device at `path` holds, and writes nothing. A program that has it
/// open as a tier must close it first; meanwhile no program can open it as one.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file is no tier or its index is damaged, KVMEM_ERR_IN_USE
/// if it is open as a tier for three seconds, KVMEM_ERR_INVALID_ARGUMENT if it is neither a file
/// nor a block device, and KVMEM_ERR_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_inspect(
    path: *const c_char,
    out_inspection: *mut kvmem_disk_tier_inspection,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_inspection`.
        let result = unsafe { out(out_inspection, "out_inspection") }?;
        // SAFETY: promise 1 of the C caller, for `path`.
        let path = unsafe { some_text(path, "path") }?;
        // Superblocks, checkpoint and journal are read one after the other.
        let (device, inspection) = inspected(path, 1)?;
        let contents = inspection.contents?;
        let superblock = &contents.superblock;
        let layout = &superblock.layout;
        let lengths = contents.lengths();
        result.put(kvmem_disk_tier_inspection {
            file_bytes: inspection.device_len,
            modified_ns: modified_ns(path),
            since: superblock.since,
            lifetime_bytes: superblock.lifetime_bytes,
            superblocks: inspection.superblocks.iter().flatten().count() as u64,
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
            used_bytes: contents.used_bytes(),
            min_bytes: lengths.map_or(0, |lengths| lengths.min),
            median_bytes: lengths.map_or(0, |lengths| lengths.median),
            max_bytes: lengths.map_or(0, |lengths| lengths.max),
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
            is_direct: u32::from(device.is_direct()),
            has_io_uring: u32::from(device.engine() == Engine::IoUring),
            reserved: 0,
        });
        Ok(())
    })
}

/// Reads every value in the file or block device at `path`, compares it with its checksum, and
/// writes nothing. Up to `depth` transfers are in flight, from 1 to 4096. `progress` (may be NULL)
/// is called with `user` and KVMEM_PHASE_VERIFY at the begin, each time that 128 MiB have
/// been read, and at the end, by the calling thread.
///
/// `out_verification` receives the counts. Damaged values are no failure: `damaged` (may be NULL)
/// receives the first `capacity` of them, in the order of the file.
///
/// Fails as kvmem_disk_tier_inspect, and with KVMEM_ERR_CANCELLED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_verify(
    path: *const c_char,
    depth: u32,
    progress: kvmem_progress_fn,
    user: *mut c_void,
    cancel: *const kvmem_cancel,
    out_verification: *mut kvmem_disk_tier_verification,
    damaged: *mut kvmem_disk_tier_damaged_value,
    capacity: u64,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_verification`.
        let result = unsafe { out(out_verification, "out_verification") }?;
        // SAFETY: promise 1 of the C caller, for `path`.
        let path = unsafe { some_text(path, "path") }?;
        let depth = depth_of(depth)?;
        let room = elements::<kvmem_disk_tier_damaged_value>(capacity, "damaged")?;
        // SAFETY: promise 2 of the C caller.
        let cancel = token(&unsafe { ObjectPromise::of_caller() }, cancel)?;
        let listener = ProgressCallback::new(progress, user);
        let (device, inspection) = inspected(path, depth)?;
        let contents = inspection.contents?;
        let (begin, total) = (Instant::now(), contents.used_bytes());
        let counts = kvmem_disk_tier_verification {
            entries: contents.entries.len() as u64,
            bytes: total,
            elapsed_ns: 0,
            damaged: 0,
            dropped: contents.dropped,
        };
        let data = contents.superblock.layout.data.start;
        let found = verify_until(&device, contents, |done| {
            if let Some(listener) = &listener {
                listener.call(kvmem_progress {
                    phase: KVMEM_PHASE_VERIFY,
                    worker: 0,
                    done_bytes: done,
                    total_bytes: total,
                    ready_bytes: done,
                    elapsed_ns: nanoseconds(begin.elapsed()),
                });
            }
            match &cancel {
                Some(cancel) if cancel.is_cancelled() => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        let Some(found) = found else {
            let text = format_args!("the verification of {path} was cancelled");
            return Err(CallError::new(KVMEM_ERR_CANCELLED, text));
        };
        if !damaged.is_null() {
            for (index, value) in found.iter().take(room).enumerate() {
                // SAFETY: promise 1 of the C caller: there is a place for each of `capacity`
                // values, and `index` is below it.
                unsafe { damaged.add(index).write(damaged_value(data, value)) };
            }
        }
        result.put(kvmem_disk_tier_verification {
            elapsed_ns: nanoseconds(begin.elapsed()),
            damaged: found.len() as u64,
            ..counts
        });
        Ok(())
    })
}

/// Converts a damaged value. `data` is where the data area begins.
fn damaged_value(data: u64, value: &DamagedValue) -> kvmem_disk_tier_damaged_value {
    let entry = &value.entry;
    let (damage, os_error) = match &value.damage {
        Damage::Device(error) => (KVMEM_DAMAGE_DEVICE, error.raw_os_error().unwrap_or(0)),
        _ => (KVMEM_DAMAGE_CHECKSUM, 0),
    };
    kvmem_disk_tier_damaged_value {
        digest: entry.digest.0,
        offset: data + u64::from(entry.start()) * BLOCK as u64,
        bytes: entry.len,
        ranges: entry.extents.len() as u32,
        damage,
        os_error,
        is_unverified: u32::from(entry.unverified),
    }
}
