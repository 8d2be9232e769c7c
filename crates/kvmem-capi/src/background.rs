//! *Background registration* (L2): the start of a region can be used while the rest is registered.

use std::ffi::c_char;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use kvmem::register::Background;

use crate::argument::{Handle, In, Out, Owned};
use crate::call::guard;
use crate::key::kvmem_key;
use crate::progress::{kvmem_progress, register_progress};
use crate::promise::ObjectPromise;
use crate::region::{kvmem_region, span};
use crate::registrars::kvmem_registrars;
use crate::registration::{builder, kvmem_registration, kvmem_registration_options};
use crate::status::kvmem_status;
use crate::table::object;

/// A region that a thread of the library is registering. Owned by the caller:
/// kvmem_background_registration_wait or kvmem_background_registration_destroy. Any thread.
pub struct kvmem_background_registration {
    _opaque: [u8; 0],
}

object!(kvmem_background_registration, Background);

/// Starts a thread that registers a region, chunk by chunk in address order. Arguments as for
/// kvmem_registration_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_create(
    region: Handle<kvmem_region>,
    registrars: Handle<kvmem_registrars>,
    options: In<kvmem_registration_options>,
    out_background: Out<*mut kvmem_background_registration>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_background.get("out_background")?;
        let region = Arc::clone(region.get(&promise)?);
        let background =
            builder(&promise, &registrars, &options)?.register_in_background(region)?;
        made.insert(background)
    })
}

/// Waits until the first `bytes` bytes can be used with all registrars, the work ends, or the time
/// is over. `out_ready_bytes` receives how many bytes can be used then. A timeout of 0 only asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_wait_ready(
    background: Handle<kvmem_background_registration>,
    bytes: u64,
    timeout_ns: u64,
    out_ready_bytes: Out<u64>,
) -> kvmem_status {
    background.on(|background| {
        out_ready_bytes
            .put("out_ready_bytes", background.wait_ready(bytes, Duration::from_nanos(timeout_ns)))
    })
}

/// Returns the progress. `out_finished` (may be NULL) is 1 if the work has ended, otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_progress(
    background: Handle<kvmem_background_registration>,
    out_progress: Out<kvmem_progress>,
    out_finished: Out<u32>,
) -> kvmem_status {
    background.on(|background| {
        out_progress.put("out_progress", register_progress(&background.progress()))?;
        out_finished.put_if_wanted(u32::from(background.is_finished()));
        Ok(())
    })
}

/// Returns the key with which `device` can access all of `[offset, offset + bytes)`, if that range
/// is registered already. KVMEM_ERR_STRADDLES if the range needs several keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_key(
    background: Handle<kvmem_background_registration>,
    device: In<c_char>,
    offset: u64,
    bytes: u64,
    out_key: Out<kvmem_key>,
) -> kvmem_status {
    background.on(|background| {
        let found = out_key.get("out_key")?;
        let device = device.some_text("device")?;
        found.put(background.key_for(device, span(offset, bytes))?.into());
        Ok(())
    })
}

/// Waits for the end of the work and makes a registration of it. Consumes the background
/// registration, also if the call fails, except with KVMEM_ERR_NULL_ARGUMENT and
/// KVMEM_ERR_BAD_HANDLE. If the work failed, all keys have been given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_wait(
    background: Owned<kvmem_background_registration>,
    out_registration: Out<*mut kvmem_registration>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_registration.get("out_registration")?;
        let set = background.take(&mut promise)?.wait()?;
        made.insert(RwLock::new(set))
    })
}

/// Ends the work early and gives all keys back. Waits for the thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_background_registration_destroy(
    background: Owned<kvmem_background_registration>,
) -> kvmem_status {
    background.destroy()
}
