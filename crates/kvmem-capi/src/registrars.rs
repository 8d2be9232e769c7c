//! *Registrars* (L2): the devices and facilities that memory is registered with.

use std::ffi::c_char;
use std::sync::Arc;

use kvmem::register::{DetectedDevice, Devices, Registrar, discover};
#[cfg(feature = "testing")]
use kvmem_testkit::simulated::SimulatedNic;

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{guard, report, size};
use crate::error::CallError;
use crate::status::*;
use crate::table::object;

/// A list of registrars: rings, NICs, GPUs (layer 2). Owned by the caller:
/// kvmem_registrars_destroy. Registrations keep what they need, so the list may be destroyed at any
/// time. Any thread, several at once.
pub struct kvmem_registrars {
    _opaque: [u8; 0],
}

object!(kvmem_registrars, Registrars);

/// Registrars, in the order of their indices.
pub struct Registrars {
    all: Vec<Arc<dyn Registrar>>,
    /// The simulated ones: all of them, or none.
    #[cfg(feature = "testing")]
    pub(crate) nics: Vec<Arc<SimulatedNic>>,
}

impl Registrars {
    pub(crate) fn of(all: Vec<Arc<dyn Registrar>>) -> Registrars {
        Registrars {
            all,
            #[cfg(feature = "testing")]
            nics: Vec::new(),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn Registrar>> {
        self.all.clone()
    }

    pub(crate) fn get(&self, index: u64) -> Result<&Arc<dyn Registrar>, CallError> {
        let none = || {
            CallError::new(
                KVMEM_ERR_NO_SUCH_DEVICE,
                format_args!("index is {index}, and the list has {} registrars", self.all.len()),
            )
        };
        self.all.get(size(index)).ok_or_else(none)
    }
}

/// Opens registrars by name, separated by commas: "io_uring", "io_uring:N" (rings), "mlock",
/// "verbs", "verbs:NIC", "cuda", "cuda:N". KVMEM_ERR_NOT_AVAILABLE: the text says what the first
/// unavailable one requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_open(
    devices: In<c_char>,
    out_registrars: Out<*mut kvmem_registrars>,
) -> kvmem_status {
    guard(|| {
        let made = out_registrars.get("out_registrars")?;
        let devices: Devices = devices.some_text("devices")?.parse()?;
        made.insert(Registrars::of(devices.open()?))
    })
}

/// Returns the number of registrars.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_count(
    registrars: Handle<kvmem_registrars>,
    out_count: Out<u64>,
) -> kvmem_status {
    registrars.on(|registrars| out_count.put("out_count", registrars.all.len() as u64))
}

/// Returns the name of the registrar at `index`; keys are requested by this name. `buffer` as for
/// kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_name(
    registrars: Handle<kvmem_registrars>,
    index: u64,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    registrars.on(|registrars| {
        let name = registrars.get(index)?.name();
        buffer.write_text(name, capacity, &out_needed)
    })
}

/// Limits of a registrar.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_limits {
    /// Largest number of bytes that one key covers.
    pub max_key_bytes: u64,
    /// Number of further keys that the registrar can give.
    pub max_keys: u64,
    /// Bytes per key that serve best: registering is fastest with them, or holds others up least.
    /// 0: fewer keys are better.
    pub preferred_chunk_bytes: u64,
    /// 1: transfers name memory by its address, without a key, and fail if their range lies in two
    /// keys. Such a registrar gets one key for a whole region, unless `chunk_bytes` is set. Else 0.
    pub copies_by_address: u64,
    /// RLIMIT_MEMLOCK as it applies to this registrar. UINT64_MAX: no known limit.
    pub memlock_bytes: u64,
}

/// Returns the limits of the registrar at `index`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_limits(
    registrars: Handle<kvmem_registrars>,
    index: u64,
    out_limits: Out<kvmem_limits>,
) -> kvmem_status {
    registrars.on(|registrars| {
        let found = out_limits.get("out_limits")?;
        let limits = registrars.get(index)?.limits();
        found.put(kvmem_limits {
            max_key_bytes: limits.max_bytes,
            max_keys: limits.max_keys,
            preferred_chunk_bytes: limits.preferred_chunk_bytes.unwrap_or(0),
            copies_by_address: limits.copies_by_address.into(),
            memlock_bytes: limits.memlock.map_or(u64::MAX, |memlock| memlock.limit_bytes),
        });
        Ok(())
    })
}

/// Destroys the list. Registrars without registrations are closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_destroy(
    registrars: Owned<kvmem_registrars>,
) -> kvmem_status {
    registrars.destroy()
}

/// Reports which registrars this machine has, and what the missing ones require, as text or JSON.
/// `buffer` as for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_discover_report(
    format: u32,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    guard(|| {
        let lines =
            |found: &Vec<DetectedDevice>| found.iter().map(|found| format!("{found}\n")).collect();
        let text = report(format, &discover(), lines)?;
        buffer.write_text(&text, capacity, &out_needed)
    })
}
