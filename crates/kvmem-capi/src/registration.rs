//! *Registration* (L2): a region that is registered with some registrars, and its keys.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kvmem::register::{RegistrationBuilder, RegistrationSet};

use crate::call::{destroy, guard, on, out, report, some_text, write_list, write_text};
use crate::cancel::{kvmem_cancel, token};
use crate::error::CallError;
use crate::key::kvmem_key;
use crate::options::{self, Options, flag, policy, populate};
use crate::progress::{ProgressCallback, kvmem_progress_fn};
use crate::promise::ObjectPromise;
use crate::region::{kvmem_region, span};
use crate::registrars::kvmem_registrars;
use crate::status::*;
use crate::table::{Object, object};

/// A region that is registered with some registrars: the whole region with each of them (layer 2).
/// Owned by the caller: kvmem_registration_destroy, which gives the keys back. Keeps the memory
/// mapped. Any thread, several at once.
pub struct kvmem_registration {
    _opaque: [u8; 0],
}

object!(kvmem_registration, RwLock<RegistrationSet>, Registration);

/// Options of a registration. Fill them in with kvmem_registration_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registration_options {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    pub policy: *const c_char,
    /// Populates pages that are not resident: KVMEM_POPULATE_AUTO (the default),
    /// KVMEM_POPULATE_NONE (the registrar faults them in), or a number of threads.
    pub populate: u32,
    /// 1: populate and register each chunk before the next one. Default 0.
    pub by_range: u32,
    /// Largest number of bytes that one key covers. 0 (the default): the registrars' preferred
    /// size; a GPU, which copies by address, gets one key for the whole region then. Copies must
    /// not cross an edge between two keys.
    pub chunk_bytes: u64,
    /// Receives progress, also of kvmem_registration_deregister. Called as long as the
    /// registration lives. Default NULL.
    pub progress: kvmem_progress_fn,
    /// Passed to `progress`.
    pub progress_user: *mut c_void,
    /// Ends registering early; nothing is registered then. Default NULL.
    pub cancel: *const kvmem_cancel,
    /// Time budget in nanoseconds; 0 (the default): no limit.
    pub time_budget_ns: u64,
}

// SAFETY: `Options` requires a `u64` size first, no padding, and that all bits are valid: the
// members are numbers, raw pointers and optional functions, of 8 bytes or in pairs of 4.
unsafe impl Options for kvmem_registration_options {
    fn defaults() -> Self {
        kvmem_registration_options {
            struct_size: size_of::<Self>() as u64,
            policy: std::ptr::null(),
            populate: options::KVMEM_POPULATE_AUTO,
            by_range: 0,
            chunk_bytes: 0,
            progress: None,
            progress_user: std::ptr::null_mut(),
            cancel: std::ptr::null(),
            time_budget_ns: 0,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_options_init(
    options: *mut kvmem_registration_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: promise 1 of the C caller, for `options`.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// # Safety
/// Promise 1 of the C caller for the options and the pointers in them.
pub(crate) unsafe fn builder(
    promise: &ObjectPromise,
    registrars: *const kvmem_registrars,
    options: *const kvmem_registration_options,
) -> Result<RegistrationBuilder, CallError> {
    // SAFETY: promise 1 of the C caller, for `options`.
    let wanted = unsafe { options::read(options) }?;
    let mut builder = RegistrationSet::builder()
        .registrars(kvmem_registrars::table().get(promise, registrars)?.all())
        // SAFETY: promise 1 of the C caller for `policy`, which this function's caller has.
        .policy(unsafe { policy(wanted.policy) }?)
        .populate(populate(wanted.populate))
        .by_range(flag(wanted.by_range, "by_range")?);
    if wanted.chunk_bytes != 0 {
        builder = builder.chunk_bytes(wanted.chunk_bytes);
    }
    if let Some(listener) = ProgressCallback::new(wanted.progress, wanted.progress_user) {
        builder = builder.progress(move |progress| listener.registered(progress));
    }
    if let Some(cancel) = token(promise, wanted.cancel)? {
        builder = builder.cancel(cancel);
    }
    if wanted.time_budget_ns != 0 {
        builder = builder.time_budget(Duration::from_nanos(wanted.time_budget_ns));
    }
    Ok(builder)
}

/// Registers a region: the whole region with all registrars, or nothing. The region stays the
/// caller's and may be destroyed before the registration, which keeps the memory mapped. `options`
/// may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_create(
    region: *const kvmem_region,
    registrars: *const kvmem_registrars,
    options: *const kvmem_registration_options,
    out_registration: *mut *mut kvmem_registration,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_registration`.
        let made = unsafe { out(out_registration, "out_registration") }?;
        let region = Arc::clone(kvmem_region::table().get(&promise, region)?);
        // SAFETY: promise 1 of the C caller, for `options` and the pointers in them.
        let set = unsafe { builder(&promise, registrars, options) }?.register(region)?;
        made.put(kvmem_registration::table().insert(RwLock::new(set))?);
        Ok(())
    })
}

/// Returns the key with which `device` can access all of `[offset, offset + bytes)`.
/// KVMEM_ERR_STRADDLES if the range needs several keys; an allocator with the registration's
/// `boundary_bytes` avoids that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_key(
    registration: *const kvmem_registration,
    device: *const c_char,
    offset: u64,
    bytes: u64,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, registration, |set| {
        // SAFETY: promise 1 of the C caller, for `out_key`.
        let found = unsafe { out(out_key, "out_key") }?;
        // SAFETY: promise 1 of the C caller, for `device`.
        let device = unsafe { some_text(device, "device") }?;
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        found.put(set.key_for(device, span(offset, bytes))?.into());
        Ok(())
    })
}

/// A chunk of a region, and its key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_chunk {
    /// Offset of the chunk in the region.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The key.
    pub key: kvmem_key,
}

/// Lists all chunks of a device with their keys, in order; none if the keys were given back. Writes
/// at most `capacity` chunks to `out_chunks` (NULL with `capacity` 0: none). `out_count` receives
/// the full number, also with KVMEM_ERR_BUFFER_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_chunks(
    registration: *const kvmem_registration,
    device: *const c_char,
    out_chunks: *mut kvmem_chunk,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, registration, |set| {
        // SAFETY: promise 1 of the C caller, for `device`.
        let device = unsafe { some_text(device, "device") }?;
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let chunk = |(range, key): (std::ops::Range<usize>, kvmem::register::Key)| kvmem_chunk {
            offset: range.start as u64,
            bytes: range.len() as u64,
            key: key.into(),
        };
        let chunks: Vec<kvmem_chunk> = set.registration(device)?.chunks().map(chunk).collect();
        // SAFETY: promise 1 of the C caller, for `out_chunks` and `out_count`.
        unsafe { write_list(&chunks, out_chunks, capacity, out_count) }
    })
}

/// The result of registering.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registration_info {
    /// Bytes of the region.
    pub bytes: u64,
    /// Bytes that were resident before.
    pub resident_bytes: u64,
    /// Number of registrars.
    pub devices: u64,
    /// Number of keys.
    pub keys: u64,
    /// The boundary to give an offset allocator so that every allocation has a single key. 0: none
    /// is needed.
    pub boundary_bytes: u64,
    /// Number of registrars that were called in parallel; 1: one call after another.
    pub threads: u64,
    /// Seconds spent on populating.
    pub populate_seconds: f64,
    /// Seconds spent on registering.
    pub register_seconds: f64,
}

/// Returns the result of registering.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_get_info(
    registration: *const kvmem_registration,
    out_info: *mut kvmem_registration_info,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, registration, |set| {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let outcome = set.outcome();
        // SAFETY: promise 1 of the C caller, for `out_info`.
        let place = unsafe { out(out_info, "out_info") }?;
        place.put(kvmem_registration_info {
            bytes: outcome.len_bytes,
            resident_bytes: outcome.resident_bytes,
            devices: outcome.devices as u64,
            keys: outcome.keys as u64,
            boundary_bytes: set.boundary_bytes().unwrap_or(0),
            threads: outcome.threads as u64,
            populate_seconds: outcome.populated.seconds,
            register_seconds: outcome.register_seconds,
        });
        Ok(())
    })
}

/// Reports what registering did, and on which measurements it decided, as text or JSON. `buffer` as
/// for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_report(
    registration: *const kvmem_registration,
    format: u32,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, registration, |set| {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let text = report(format, set.outcome(), ToString::to_string)?;
        // SAFETY: promise 1 of the C caller, for `buffer` and `out_needed`.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Gives all keys back. A second call does nothing. `out_keys` (may be NULL) receives the number of
/// keys that were given back. KVMEM_ERR_DEREGISTER_FAILED: a registrar failed to take some keys
/// back. Those stay valid, their memory stays mapped, and the call can be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_deregister(
    registration: *const kvmem_registration,
    out_keys: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, registration, |set| {
        let back = set.write().unwrap_or_else(PoisonError::into_inner).deregister()?;
        // SAFETY: promise 1 of the C caller, for `out_keys`.
        if let Ok(keys) = unsafe { out(out_keys, "") } {
            keys.put(back.keys as u64);
        }
        Ok(())
    })
}

/// Gives the remaining keys back and destroys the registration. If a registrar fails to take a key
/// back, the memory stays mapped for the life of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_destroy(
    registration: *mut kvmem_registration,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, registration)
}
