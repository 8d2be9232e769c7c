//! *Background registration* (L2): the beginning of a region can be used while the rest is
//! registered.

use std::ffi::c_char;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use kvmem::register::Background;

use crate::call::{destroy, guard, on, out, some_text};
use crate::key::kvmem_key;
use crate::progress::{kvmem_progress, of_registering};
use crate::region::{kvmem_region, span};
use crate::registrars::kvmem_registrars;
use crate::registration::{builder, kvmem_registration, kvmem_registration_options};
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// A region that a thread of the library is registering. Owned by the caller: kvmem_background_wait
/// or kvmem_background_destroy. Any thread.
pub struct kvmem_background {
    _opaque: [u8; 0],
}

object!(kvmem_background, Background, Background);

/// Begins to register a region, chunk by chunk in order of addresses, and goes on in a thread of
/// its own. As kvmem_register otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_register_in_background(
    region: *const kvmem_region,
    registrars: *const kvmem_registrars,
    options: *const kvmem_registration_options,
    out_background: *mut *mut kvmem_background,
) -> kvmem_status {
    guard(|| {
        let made = out(out_background, "out_background")?;
        let region = Arc::clone(kvmem_region::table().get(region)?);
        // SAFETY: the caller's promise.
        let background = unsafe { builder(registrars, options) }?.register_in_background(region)?;
        made.put(kvmem_background::table().insert(background)?);
        Ok(())
    })
}

/// Waits until the first `bytes` bytes can be used with all registrars, the work has ended, or the
/// time is over; `out_ready_bytes` is how many can be used then. A timeout of 0 only asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_wait_ready(
    background: *const kvmem_background,
    bytes: u64,
    timeout_ns: u64,
    out_ready_bytes: *mut u64,
) -> kvmem_status {
    on(background, |background| {
        let ready = out(out_ready_bytes, "out_ready_bytes")?;
        ready.put(background.wait_ready(bytes, Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}

/// How far it has come; `out_finished` (may be NULL) is 1 if there is nothing more to wait for,
/// else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_progress(
    background: *const kvmem_background,
    out_progress: *mut kvmem_progress,
    out_finished: *mut u32,
) -> kvmem_status {
    on(background, |background| {
        out(out_progress, "out_progress")?.put(of_registering(&background.progress()));
        if let Ok(finished) = out(out_finished, "") {
            finished.put(u32::from(background.is_finished()));
        }
        Ok(())
    })
}

/// As kvmem_registration_key, for what is registered already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_key(
    background: *const kvmem_background,
    device: *const c_char,
    offset: u64,
    bytes: u64,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    on(background, |background| {
        let found = out(out_key, "out_key")?;
        // SAFETY: the caller's promise.
        let device = unsafe { some_text(device, "device") }?;
        found.put(background.key_for(device, span(offset, bytes))?.into());
        Ok(())
    })
}

/// Waits for the end, and makes a registration of it; the background object is gone then, also if
/// the call fails, but for KVMEM_NULL_ARGUMENT and KVMEM_BAD_HANDLE. If it fails all keys have been
/// given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_wait(
    background: *mut kvmem_background,
    out_registration: *mut *mut kvmem_registration,
) -> kvmem_status {
    guard(|| {
        let made = out(out_registration, "out_registration")?;
        let set = kvmem_background::table().take(background)?.wait()?;
        made.put(kvmem_registration::table().insert(RwLock::new(set))?);
        Ok(())
    })
}

/// Ends it early, and gives everything back. Waits for the thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_destroy(
    background: *mut kvmem_background,
) -> kvmem_status {
    destroy(background)
}
