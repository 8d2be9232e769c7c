//! *Tier set*: disk tiers on several devices, which hold values together.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvmem_tier::{OpenReport, TierSet, TierSetError};

use crate::call::{destroy, guard, list, on, out};
use crate::disk_tier::{kvmem_disk_tier_options, tier_options};
use crate::error::CallError;
use crate::kv_value::kvmem_kv_cache_key;
use crate::options;
use crate::pool::kvmem_pool;
use crate::promise::ObjectPromise;
use crate::stats::{kvmem_disk_tier_report, kvmem_disk_tier_stats};
use crate::status::*;
use crate::table::{Object, object};
use crate::tier_values::{self, kvmem_disk_tier_request, kvmem_disk_tier_value};

/// Disk tiers on several devices, which hold values together. Each key belongs to one of them, by a
/// hash of the key and of the file's identity: files may be named in any order, and a device that
/// is gone loses only its own keys. Transfers on different devices run side by side. Owned by the
/// caller: kvmem_tier_set_destroy. Any thread, several at once; a call blocks until the devices are
/// done. In a forked child every call returns KVMEM_ERR_FORKED, except kvmem_tier_set_destroy.
pub struct kvmem_tier_set {
    _opaque: [u8; 0],
}

object!(kvmem_tier_set, Arc<TierSet>, TierSet);

/// Copies the paths of a set.
///
/// # Safety
/// Promise 1 of the C caller, for the list and the texts.
unsafe fn paths_of(paths: *const *const c_char, count: u64) -> Result<Vec<PathBuf>, CallError> {
    // SAFETY: the promise of the caller.
    let paths = unsafe { list(paths, count, "paths") }?;
    let path = |&path: &*const c_char| {
        if path.is_null() {
            return Err(CallError::Null("paths"));
        }
        // SAFETY: the pointer is not NULL, and the caller promises a text that ends with a NUL.
        let text = unsafe { CStr::from_ptr(path) }.to_str();
        text.map(|text| Path::new(text).to_owned())
            .map_err(|_| CallError::invalid("a path is not UTF-8: pass a UTF-8 text"))
    };
    paths.iter().map(path).collect()
}

/// Writes the reports of those tiers that were opened, by the places of their paths.
///
/// # Safety
/// Promise 1 of the C caller, for `out_reports`, which has a place for each element.
unsafe fn write_reports<'a>(
    reports: impl Iterator<Item = Option<&'a OpenReport>>,
    out_reports: *mut kvmem_disk_tier_report,
) {
    for (index, report) in reports.enumerate() {
        if let (Some(report), false) = (report, out_reports.is_null()) {
            // SAFETY: the promise of the caller.
            unsafe { out_reports.add(index).write(report.into()) };
        }
    }
}

/// Opens the tiers in `count` files or block devices, side by side, and makes those that are new.
/// `options` (may be NULL) hold for each of them. `out_reports` (may be NULL) receives what was
/// found in each, in the order of `paths`.
///
/// Fails as kvmem_disk_tier_open, and names the file. KVMEM_ERR_INVALID_ARGUMENT if there is no
/// file, or if one is a copy of another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_open(
    paths: *const *const c_char,
    count: u64,
    options: *const kvmem_disk_tier_options,
    out_set: *mut *mut kvmem_tier_set,
    out_reports: *mut kvmem_disk_tier_report,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_set`.
        let made = unsafe { out(out_set, "out_set") }?;
        // SAFETY: promise 1 of the C caller, for `paths` and the texts.
        let paths = unsafe { paths_of(paths, count) }?;
        // SAFETY: promise 1 of the C caller, for `options`.
        let converted = tier_options(&unsafe { options::read(options) }?)?;
        let (set, reports) = TierSet::open(&paths, &converted.options)?;
        // SAFETY: promise 1 of the C caller: a place for each of `count` reports.
        unsafe { write_reports(reports.iter().map(Some), out_reports) };
        made.put(kvmem_tier_set::table().insert(Arc::new(set))?);
        converted.own_user_data();
        Ok(())
    })
}

/// Opens those of the tiers that can be opened, as kvmem_tier_set_open. The keys of the others
/// belong to the rest meanwhile. `out_results` (may be NULL) receives the status of each file, and
/// `out_reports` (may be NULL) the report of each file that was opened; other elements keep their
/// bytes.
///
/// A device that comes back has the values of the time before: a value that was replaced meanwhile
/// is found in its older form. Keys that are hashes of their values do not have that problem; with
/// others, open such a device with `format`, or call kvmem_tier_set_clear.
///
/// Fails if none can be opened: KVMEM_ERR_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_open_available(
    paths: *const *const c_char,
    count: u64,
    options: *const kvmem_disk_tier_options,
    out_set: *mut *mut kvmem_tier_set,
    out_reports: *mut kvmem_disk_tier_report,
    out_results: *mut kvmem_status,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_set`.
        let made = unsafe { out(out_set, "out_set") }?;
        // SAFETY: promise 1 of the C caller, for `paths` and the texts.
        let paths = unsafe { paths_of(paths, count) }?;
        // SAFETY: promise 1 of the C caller, for `options`.
        let converted = tier_options(&unsafe { options::read(options) }?)?;
        let (set, results) = TierSet::open_available(&paths, &converted.options)?;
        // SAFETY: promise 1 of the C caller: a place for each of `count` reports.
        unsafe { write_reports(results.iter().map(|one| one.as_ref().ok()), out_reports) };
        let handle = kvmem_tier_set::table().insert(Arc::new(set))?;
        converted.own_user_data();
        if !out_results.is_null() {
            for (index, result) in results.into_iter().enumerate() {
                let status = match result {
                    Ok(_) => KVMEM_OK,
                    Err(error) => CallError::from(error).status(),
                };
                // SAFETY: promise 1 of the C caller: a place for each of `count` results.
                unsafe { out_results.add(index).write(status) };
            }
        }
        made.put(handle);
        Ok(())
    })
}

impl From<TierSetError> for CallError {
    fn from(error: TierSetError) -> CallError {
        let text = error.to_string();
        match error {
            TierSetError::Open { source, .. } => {
                CallError::new(CallError::from(source).status(), text)
            }
            _ => CallError::invalid(text),
        }
    }
}

/// Stores values on the devices to which their keys belong, as kvmem_disk_tier_store does.
/// `out_results` (may be NULL) receives the status of each value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_store(
    set: *const kvmem_tier_set,
    values: *const kvmem_disk_tier_value,
    count: u64,
    out_results: *mut kvmem_status,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `values` and `out_results`.
    on(&promise, set, |set| unsafe { tier_values::store(set, values, count, out_results) })
}

/// Fetches values from all devices at once, as kvmem_disk_tier_fetch does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_fetch(
    set: *const kvmem_tier_set,
    requests: *mut kvmem_disk_tier_request,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `requests`.
    on(&promise, set, |set| unsafe { tier_values::fetch(set, requests, count) })
}

/// Returns the length of a value in bytes, as kvmem_disk_tier_len_of does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_len_of(
    set: *const kvmem_tier_set,
    key: *const c_void,
    key_bytes: u64,
    out_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `key` and `out_bytes`.
    on(&promise, set, |set| unsafe { tier_values::len_of(set, key, key_bytes, out_bytes) })
}

/// Removes the values of `count` keys, as kvmem_disk_tier_remove does. `out_removed` (may be NULL)
/// receives how many there were. Returns the first failure of a device; the others have removed
/// theirs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_remove(
    set: *const kvmem_tier_set,
    keys: *const kvmem_kv_cache_key,
    count: u64,
    out_removed: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `keys` and `out_removed`.
    on(&promise, set, |set| unsafe { tier_values::remove(set, keys, count, out_removed) })
}

/// Removes all values, durably. Fails as kvmem_tier_set_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_clear(set: *const kvmem_tier_set) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, set, |set| Ok(set.clear()?))
}

/// Makes all that was stored and removed before durable on every device, as kvmem_disk_tier_sync
/// does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_sync(set: *const kvmem_tier_set) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, set, |set| Ok(set.sync_all()?))
}

/// Writes the index of every device, as kvmem_disk_tier_checkpoint does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_checkpoint(set: *const kvmem_tier_set) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, set, |set| Ok(set.checkpoint()?))
}

/// Reads the sums of the statistics of all devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_get_stats(
    set: *const kvmem_tier_set,
    out_stats: *mut kvmem_disk_tier_stats,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `out_stats`.
    on(&promise, set, |set| unsafe { tier_values::get_stats(set, out_stats) })
}

/// Registers the memory of a pool with the rings of every file, as kvmem_disk_tier_register_memory
/// does. Returns the first failure of a device; the others have registered it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_register_memory(
    set: *const kvmem_tier_set,
    pool: *const kvmem_pool,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, set, |set| Ok(set.register_memory(kvmem_pool::table().get(&promise, pool)?)?))
}

/// Deregisters the memory of a pool. Does nothing if it is not registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_deregister_memory(
    set: *const kvmem_tier_set,
    pool: *const kvmem_pool,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, set, |set| {
        set.deregister_memory(kvmem_pool::table().get(&promise, pool)?);
        Ok(())
    })
}

/// Closes a set. Its files stay open and locked until the lower tiers made of it, and the caches
/// above them, are destroyed, too. The end writes a checkpoint of each file that has changed, for
/// at most ten seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_destroy(set: *mut kvmem_tier_set) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, set)
}
