//! *Background registration* (L2): the start of a region can be used while the rest is registered.

use std::ffi::c_char;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use kvmem::register::Background;

use crate::call::{destroy, guard, on, out, some_text};
use crate::key::kvmem_key;
use crate::progress::{kvmem_progress, register_progress};
use crate::promise::ObjectPromise;
use crate::region::{kvmem_region, span};
use crate::registrars::kvmem_registrars;
use crate::registration::{builder, kvmem_registration, kvmem_registration_options};
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// A region that a thread of the library is registering. Owned by the caller:
/// kvmem_background_registration_wait or kvmem_background_registration_destroy. Any thread.
pub struct kvmem_background_registration {
    _opaque: [u8; 0],
}

object!(kvmem_background_registration, Background, Background);

/// Starts a thread that registers a region, chunk by chunk in address order. Arguments as for
/// kvmem_registration_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_create(
    region: *const kvmem_region,
    registrars: *const kvmem_registrars,
    options: *const kvmem_registration_options,
    out_background: *mut *mut kvmem_background_registration,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_background`.
        let made = unsafe { out(out_background, "out_background") }?;
        let region = Arc::clone(kvmem_region::table().get(&promise, region)?);
        // SAFETY: promise 1 of the C caller, for `options` and the pointers in them.
        let background =
            unsafe { builder(&promise, registrars, options) }?.register_in_background(region)?;
        made.put(kvmem_background_registration::table().insert(background)?);
        Ok(())
    })
}

/// Waits until the first `bytes` bytes can be used with all registrars, the work ends, or the time
/// is over. `out_ready_bytes` receives how many bytes can be used then. A timeout of 0 only asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_wait_ready(
    background: *const kvmem_background_registration,
    bytes: u64,
    timeout_ns: u64,
    out_ready_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, background, |background| {
        // SAFETY: promise 1 of the C caller, for `out_ready_bytes`.
        let ready = unsafe { out(out_ready_bytes, "out_ready_bytes") }?;
        ready.put(background.wait_ready(bytes, Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}

/// Returns the progress. `out_finished` (may be NULL) is 1 if the work has ended, otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_progress(
    background: *const kvmem_background_registration,
    out_progress: *mut kvmem_progress,
    out_finished: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, background, |background| {
        // SAFETY: promise 1 of the C caller, for `out_progress`.
        let place = unsafe { out(out_progress, "out_progress") }?;
        place.put(register_progress(&background.progress()));
        // SAFETY: promise 1 of the C caller, for `out_finished`.
        if let Ok(finished) = unsafe { out(out_finished, "") } {
            finished.put(u32::from(background.is_finished()));
        }
        Ok(())
    })
}

/// Returns the key with which `device` can access all of `[offset, offset + bytes)`, if that range
/// is registered already. KVMEM_ERR_STRADDLES if the range needs several keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_key(
    background: *const kvmem_background_registration,
    device: *const c_char,
    offset: u64,
    bytes: u64,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, background, |background| {
        // SAFETY: promise 1 of the C caller, for `out_key`.
        let found = unsafe { out(out_key, "out_key") }?;
        // SAFETY: promise 1 of the C caller, for `device`.
        let device = unsafe { some_text(device, "device") }?;
        found.put(background.key_for(device, span(offset, bytes))?.into());
        Ok(())
    })
}

/// Waits for the end of the work and makes a registration of it. Consumes the background
/// registration, also if the call fails, except with KVMEM_ERR_NULL_ARGUMENT and
/// KVMEM_ERR_BAD_HANDLE. If the work failed, all keys have been given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_wait(
    background: *mut kvmem_background_registration,
    out_registration: *mut *mut kvmem_registration,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_registration`.
        let made = unsafe { out(out_registration, "out_registration") }?;
        let set = kvmem_background_registration::table().take(&mut promise, background)?.wait()?;
        made.put(kvmem_registration::table().insert(RwLock::new(set))?);
        Ok(())
    })
}

/// Ends the work early and gives all keys back. Waits for the thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_destroy(
    background: *mut kvmem_background_registration,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, background)
}
