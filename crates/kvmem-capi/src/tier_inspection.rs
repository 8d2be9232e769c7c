//! *Tier inspection*: what the file of a disk tier holds, and whether its values are those that
//! were stored. The command `kvmem tier` reports the same.

use std::ffi::{c_char, c_void};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use kvmem_tier::device::FileDevice;
use kvmem_tier::format::BLOCK;
use kvmem_tier::{Damage, DamagedValue, DiskTierInspection, Inspection, inspect, verify_until};

use crate::argument::{Handle, In, Out};
use crate::call::{elements, guard};
use crate::cancel::{kvmem_cancel, token};
use crate::disk_tier::keyring;
use crate::error::CallError;
use crate::progress::{
    KVMEM_PHASE_VERIFY, ProgressCallback, kvmem_progress, kvmem_progress_fn, nanoseconds,
};
use crate::promise::ObjectPromise;
use crate::stats::kvmem_disk_tier_inspection;
use crate::status::*;

/// Damage: the bytes on the drive are not those that were stored.
pub const KVMEM_DAMAGE_CHECKSUM: u32 = 0;
/// Damage: the drive failed to read them.
pub const KVMEM_DAMAGE_DEVICE: u32 = 1;
/// Damage: the bytes have their checksum, and the keys do not decode them: they are encrypted with
/// another key, or were changed together with the checksum.
pub const KVMEM_DAMAGE_ENCODING: u32 = 2;

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
    /// KVMEM_DAMAGE_CHECKSUM, KVMEM_DAMAGE_DEVICE or KVMEM_DAMAGE_ENCODING.
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

/// Transfers in flight of a verification.
const VERIFY_DEPTH: u32 = 32;

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

/// Reads what the file or block device at `path` holds, and writes nothing. A program that has it
/// open as a tier must close it first; meanwhile no program can open it as one.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file is no tier or its index is damaged, KVMEM_ERR_IN_USE
/// if it is open as a tier for three seconds, KVMEM_ERR_INVALID_ARGUMENT if it is neither a file
/// nor a block device, and KVMEM_ERR_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_inspect(
    path: In<c_char>,
    out_inspection: Out<kvmem_disk_tier_inspection>,
) -> kvmem_status {
    guard(|| {
        let result = out_inspection.get("out_inspection")?;
        let path = path.some_text("path")?;
        // Superblocks, checkpoint and journal are read one after the other.
        let (device, inspection) = inspected(path, 1)?;
        let found = DiskTierInspection::new(path.as_ref(), &device, inspection)?;
        result.put(kvmem_disk_tier_inspection::new(&found, found.identity));
        Ok(())
    })
}

/// Reads every value in the file or block device at `path`, compares it with its checksum, and
/// writes nothing. With `key_file` (may be NULL), the `key_file` of a tier, each value is decrypted
/// and decompressed, too. `progress` (may be NULL) is called with `user` and KVMEM_PHASE_VERIFY at
/// the begin, each time that 128 MiB have been read, and at the end, by the calling thread.
///
/// `out_verification` receives the counts. Damaged values are no failure: `damaged` (may be NULL)
/// receives the first `capacity` of them, in the order of the file.
///
/// Fails as kvmem_disk_tier_inspect, with KVMEM_ERR_INVALID_ARGUMENT for a key file of another
/// form, and with KVMEM_ERR_CANCELLED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_verify(
    path: In<c_char>,
    key_file: In<c_char>,
    progress: kvmem_progress_fn,
    user: *mut c_void,
    cancel: Handle<kvmem_cancel>,
    out_verification: Out<kvmem_disk_tier_verification>,
    damaged: *mut kvmem_disk_tier_damaged_value,
    capacity: u64,
) -> kvmem_status {
    guard(|| {
        let result = out_verification.get("out_verification")?;
        let path = path.some_text("path")?;
        let room = elements::<kvmem_disk_tier_damaged_value>(capacity, "damaged")?;
        // SAFETY: promise 2 of the C caller.
        let cancel = token(&unsafe { ObjectPromise::of_caller() }, &cancel)?;
        let listener = ProgressCallback::new(progress, user);
        let keys = keyring(&key_file)?;
        let (device, inspection) = inspected(path, VERIFY_DEPTH)?;
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
        let found = verify_until(&device, contents, keys.as_ref(), |done| {
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
        let found = found.map_err(|error| CallError::new(KVMEM_ERR_SYSTEM, error))?;
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
        Damage::Encoding(_) => (KVMEM_DAMAGE_ENCODING, 0),
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
