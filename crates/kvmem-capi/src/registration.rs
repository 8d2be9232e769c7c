//! *Registration* (L2): a region, registered with some registrars, and the keys to it.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kvmem::register::{RegistrationBuilder, RegistrationSet};

use crate::call::{destroy, guard, on, out, report, some_text, write_list, write_text};
use crate::cancel::{kvmem_cancel, token};
use crate::fail::Fail;
use crate::key::kvmem_key;
use crate::options::{self, Options, flag, policy, populate};
use crate::progress::{Listener, kvmem_progress_fn};
use crate::region::{kvmem_region, span};
use crate::registrars::kvmem_registrars;
use crate::status::*;
use crate::table::{Object, object};

/// A region, registered with some registrars: all of it with all of them (layer 2). Owned by the
/// caller: kvmem_registration_destroy, which gives the keys back. It keeps the memory. Any thread,
/// several at once.
pub struct kvmem_registration {
    _opaque: [u8; 0],
}

object!(kvmem_registration, RwLock<RegistrationSet>, Registration);

/// How a region is to be registered. Fill it with kvmem_registration_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registration_options {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    pub policy: *const c_char,
    /// Who makes resident what is not: KVMEM_POPULATE_AUTO (the default), KVMEM_POPULATE_NONE, or
    /// a number of threads.
    pub populate: u32,
    /// 1: each chunk is populated and registered before the next is. Default 0.
    pub by_range: u32,
    /// The most bytes that one key is to cover; 0 (the default): as the registrars like it best.
    pub chunk_bytes: u64,
    /// Is told how far it has come, of kvmem_registration_deregister too: as long as the
    /// registration lives. Default NULL.
    pub progress: kvmem_progress_fn,
    /// Given to `progress`.
    pub progress_user: *mut c_void,
    /// Ends it early: then nothing is registered. Default NULL.
    pub cancel: *const kvmem_cancel,
    /// How long it may take, in nanoseconds; 0 (the default): as long as it takes.
    pub time_budget_ns: u64,
}

// SAFETY: numbers and pointers only, of 8 bytes or in pairs of 4; the first is the size.
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
    // SAFETY: the caller's promise.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// # Safety
/// The caller's promise, as to the options.
pub(crate) unsafe fn builder(
    registrars: *const kvmem_registrars,
    options: *const kvmem_registration_options,
) -> Result<RegistrationBuilder, Fail> {
    // SAFETY: the caller's promise.
    let wanted = unsafe { options::read(options) }?;
    let mut builder = RegistrationSet::builder()
        .registrars(kvmem_registrars::table().get(registrars)?.all())
        // SAFETY: the caller's promise.
        .policy(unsafe { policy(wanted.policy) }?)
        .populate(populate(wanted.populate))
        .by_range(flag(wanted.by_range, "by_range")?);
    if wanted.chunk_bytes != 0 {
        builder = builder.chunk_bytes(wanted.chunk_bytes);
    }
    if let Some(listener) = Listener::new(wanted.progress, wanted.progress_user) {
        builder = builder.progress(move |progress| listener.registered(progress));
    }
    if let Some(cancel) = token(wanted.cancel)? {
        builder = builder.cancel(cancel);
    }
    if wanted.time_budget_ns != 0 {
        builder = builder.time_budget(Duration::from_nanos(wanted.time_budget_ns));
    }
    Ok(builder)
}

/// Registers a region, all of it with all registrars, or nothing. The region stays the caller's,
/// and may be destroyed before the registration, which keeps the memory. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_register(
    region: *const kvmem_region,
    registrars: *const kvmem_registrars,
    options: *const kvmem_registration_options,
    out_registration: *mut *mut kvmem_registration,
) -> kvmem_status {
    guard(|| {
        let made = out(out_registration, "out_registration")?;
        let region = Arc::clone(kvmem_region::table().get(region)?);
        // SAFETY: the caller's promise.
        let set = unsafe { builder(registrars, options) }?.register(region)?;
        made.put(kvmem_registration::table().insert(RwLock::new(set))?);
        Ok(())
    })
}

/// The key with which `device` can reach all of `[offset, offset + bytes)`. KVMEM_STRADDLES if that
/// takes more than one; the registration's boundary says how to avoid that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_key(
    registration: *const kvmem_registration,
    device: *const c_char,
    offset: u64,
    bytes: u64,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    on(registration, |set| {
        let found = out(out_key, "out_key")?;
        // SAFETY: the caller's promise.
        let device = unsafe { some_text(device, "device") }?;
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        found.put(set.key_for(device, span(offset, bytes))?.into());
        Ok(())
    })
}

/// A chunk of a region with its key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_chunk {
    /// Where it begins in the region.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// The key to it.
    pub key: kvmem_key,
}

/// All chunks of a device with their keys, in order; none if they have been given back. At most
/// `capacity` are written to `out_chunks` (NULL with `capacity` 0: none); `out_count` is set to how
/// many there are, also when the call ends with KVMEM_BUFFER_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_chunks(
    registration: *const kvmem_registration,
    device: *const c_char,
    out_chunks: *mut kvmem_chunk,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    on(registration, |set| {
        // SAFETY: the caller's promise.
        let device = unsafe { some_text(device, "device") }?;
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let chunk = |(range, key): (std::ops::Range<usize>, kvmem::register::Key)| kvmem_chunk {
            offset: range.start as u64,
            bytes: range.len() as u64,
            key: key.into(),
        };
        let chunks: Vec<kvmem_chunk> = set.registration(device)?.chunks().map(chunk).collect();
        // SAFETY: the caller's promise.
        unsafe { write_list(&chunks, out_chunks, capacity, out_count) }
    })
}

/// What registering did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registration_info {
    /// Bytes of the region.
    pub bytes: u64,
    /// Bytes of them that were resident before.
    pub resident_bytes: u64,
    /// Registrars.
    pub devices: u64,
    /// Keys given.
    pub keys: u64,
    /// What an offset allocator may be told as its boundary, so that every allocation has one key;
    /// 0: it need not be told any.
    pub boundary_bytes: u64,
    /// How many registrars were called side by side; 1: one call after another.
    pub threads: u64,
    /// Seconds that populating took.
    pub populate_seconds: f64,
    /// Seconds that registering took.
    pub register_seconds: f64,
}

/// What registering did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_get_info(
    registration: *const kvmem_registration,
    out_info: *mut kvmem_registration_info,
) -> kvmem_status {
    on(registration, |set| {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let outcome = set.outcome();
        out(out_info, "out_info")?.put(kvmem_registration_info {
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

/// What registering did, and on what grounds, as a text or JSON; see kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_report(
    registration: *const kvmem_registration,
    format: u32,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    on(registration, |set| {
        let set = set.read().unwrap_or_else(PoisonError::into_inner);
        let text = report(format, set.outcome(), ToString::to_string)?;
        // SAFETY: the caller's promise.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Gives all keys back; a second time does nothing. `out_keys` (may be NULL) is set to how many
/// were given back. KVMEM_KEPT if some were not taken: they stay out, the memory stays mapped, and
/// this can be tried again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_deregister(
    registration: *const kvmem_registration,
    out_keys: *mut u64,
) -> kvmem_status {
    on(registration, |set| {
        let back = set.write().unwrap_or_else(PoisonError::into_inner).deregister()?;
        if let Ok(keys) = out(out_keys, "") {
            keys.put(back.keys as u64);
        }
        Ok(())
    })
}

/// Gives the keys back that are still out, and destroys the registration. Keys that are not taken
/// back keep their memory mapped for the life of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registration_destroy(
    registration: *mut kvmem_registration,
) -> kvmem_status {
    destroy(registration)
}
