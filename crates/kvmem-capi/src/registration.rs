//! *Registration* (L2): a region that is registered with some registrars, and its keys.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kvmem::register::{RegistrationBuilder, RegistrationSet};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{guard, report};
use crate::cancel::{kvmem_cancel, token};
use crate::error::CallError;
use crate::key::kvmem_key;
use crate::options::{self, flag, options, policy, populate};
use crate::progress::{ProgressCallback, kvmem_progress_fn};
use crate::promise::ObjectPromise;
use crate::region::{kvmem_region, span};
use crate::registrars::kvmem_registrars;
use crate::status::*;
use crate::table::object;

/// A region that is registered with some registrars: the whole region with each of them (layer 2).
/// Owned by the caller: kvmem_registration_destroy, which gives the keys back. Keeps the memory
/// mapped. Any thread, several at once.
pub struct kvmem_registration {
    _opaque: [u8; 0],
}

object!(kvmem_registration, RwLock<RegistrationSet>);

options! {
    /// Options of a registration. Fill them in with kvmem_registration_options_init first.
    kvmem_registration_options: kvmem_registration_options_init;

    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    policy: In<c_char> = In::NULL,
    /// Populates pages that are not resident: KVMEM_POPULATE_AUTO (the default),
    /// KVMEM_POPULATE_NONE (the registrar faults them in), or a number of threads.
    populate: u32 = options::KVMEM_POPULATE_AUTO,
    /// 1: populate and register each chunk before the next one. Default 0.
    by_range: u32 = 0,
    /// Largest number of bytes that one key covers. 0 (the default): the registrars' preferred
    /// size; a GPU, which copies by address, gets one key for the whole region then. Copies must
    /// not cross an edge between two keys.
    chunk_bytes: u64 = 0,
    /// Receives progress, also of kvmem_registration_deregister. Called as long as the
    /// registration lives. Default NULL.
    progress: kvmem_progress_fn = None,
    /// Passed to `progress`.
    progress_user: *mut c_void = std::ptr::null_mut(),
    /// Ends registering early; nothing is registered then. Default NULL.
    cancel: Handle<kvmem_cancel> = Handle::NULL,
    /// Time budget in nanoseconds; 0 (the default): no limit.
    time_budget_ns: u64 = 0,
}

pub(crate) fn builder(
    promise: &ObjectPromise,
    registrars: &Handle<kvmem_registrars>,
    options: &In<kvmem_registration_options>,
) -> Result<RegistrationBuilder, CallError> {
    let wanted = options::read(options)?;
    let mut builder = RegistrationSet::builder()
        .registrars(registrars.get(promise)?.all())
        .policy(policy(&wanted.policy)?)
        .populate(populate(wanted.populate))
        .by_range(flag(wanted.by_range, "by_range")?);
    if wanted.chunk_bytes != 0 {
        builder = builder.chunk_bytes(wanted.chunk_bytes);
    }
    if let Some(listener) = ProgressCallback::new(wanted.progress, wanted.progress_user) {
        builder = builder.progress(move |progress| listener.registered(progress));
    }
    if let Some(cancel) = token(promise, &wanted.cancel)? {
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
    region: Handle<kvmem_region>,
    registrars: Handle<kvmem_registrars>,
    options: In<kvmem_registration_options>,
    out_registration: Out<*mut kvmem_registration>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_registration.get("out_registration")?;
        let region = Arc::clone(region.get(&promise)?);
        let set = builder(&promise, &registrars, &options)?.register(region)?;
        made.insert(RwLock::new(set))
    })
}

/// Returns the key with which `device` can access all of `[offset, offset + bytes)`.
/// KVMEM_ERR_STRADDLES if the range needs several keys; an allocator with the registration's
/// `boundary_bytes` avoids that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_key(
    registration: Handle<kvmem_registration>,
    device: In<c_char>,
    offset: u64,
    bytes: u64,
    out_key: Out<kvmem_key>,
) -> kvmem_status {
    registration.on(|set| {
        let found = out_key.get("out_key")?;
        let device = device.some_text("device")?;
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
    registration: Handle<kvmem_registration>,
    device: In<c_char>,
    out_chunks: Out<kvmem_chunk>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    registration.on(|set| {
        let device = device.some_text("device")?;
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let chunk = |(range, key): (std::ops::Range<usize>, kvmem::register::Key)| kvmem_chunk {
            offset: range.start as u64,
            bytes: range.len() as u64,
            key: key.into(),
        };
        let chunks: Vec<kvmem_chunk> = set.registration(device)?.chunks().map(chunk).collect();
        out_chunks.write_list(&chunks, capacity, &out_count)
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
    registration: Handle<kvmem_registration>,
    out_info: Out<kvmem_registration_info>,
) -> kvmem_status {
    registration.on(|set| {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let outcome = set.outcome();
        out_info.put(
            "out_info",
            kvmem_registration_info {
                bytes: outcome.len_bytes,
                resident_bytes: outcome.resident_bytes,
                devices: outcome.devices as u64,
                keys: outcome.keys as u64,
                boundary_bytes: set.boundary_bytes().unwrap_or(0),
                threads: outcome.threads as u64,
                populate_seconds: outcome.populated.seconds,
                register_seconds: outcome.register_seconds,
            },
        )
    })
}

/// Reports what registering did, and on which measurements it decided, as text or JSON. `buffer` as
/// for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_report(
    registration: Handle<kvmem_registration>,
    format: u32,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    registration.on(|set| {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let text = report(format, set.outcome(), ToString::to_string)?;
        buffer.write_text(&text, capacity, &out_needed)
    })
}

/// Gives all keys back. A second call does nothing. `out_keys` (may be NULL) receives the number of
/// keys that were given back. KVMEM_ERR_DEREGISTER_FAILED: a registrar failed to take some keys
/// back. Those stay valid, their memory stays mapped, and the call can be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_deregister(
    registration: Handle<kvmem_registration>,
    out_keys: Out<u64>,
) -> kvmem_status {
    registration.on(|set| {
        let back = set.write().unwrap_or_else(PoisonError::into_inner).deregister()?;
        out_keys.put_if_wanted(back.keys as u64);
        Ok(())
    })
}

/// Gives the remaining keys back and destroys the registration. If a registrar fails to take a key
/// back, the memory stays mapped for the life of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_destroy(
    registration: Owned<kvmem_registration>,
) -> kvmem_status {
    registration.destroy()
}
