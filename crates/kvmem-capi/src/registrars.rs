//! *Registrars* (L2): with whom memory is to be registered.

use std::ffi::c_char;
use std::sync::Arc;

use kvmem::arena::Errno;
use kvmem::register::simulated::{Fault, Machine, Nic, NicLimits};
use kvmem::register::{DetectedDevice, Devices, Registrar, discover};

use crate::call::{destroy, guard, on, out, report, size, some_text, write_text};
use crate::fail::Fail;
use crate::status::*;
use crate::table::{Object, object};

/// Some registrars: rings, NICs, GPUs (layer 2). Owned by the caller: kvmem_registrars_destroy.
/// What was registered with them keeps what it needs, so they may be destroyed at any time. Any
/// thread, several at once.
pub struct kvmem_registrars {
    _opaque: [u8; 0],
}

object!(kvmem_registrars, Registrars, Registrars);

/// Registrars; those that are simulated by what they can be told.
pub struct Registrars {
    all: Vec<Arc<dyn Registrar>>,
    nics: Vec<Arc<Nic>>,
}

impl Registrars {
    pub(crate) fn of(all: Vec<Arc<dyn Registrar>>) -> Registrars {
        Registrars { all, nics: Vec::new() }
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn Registrar>> {
        self.all.clone()
    }

    fn get(&self, index: u64) -> Result<&Arc<dyn Registrar>, Fail> {
        let none = || {
            Fail::said(
                KVMEM_NO_SUCH_DEVICE,
                format_args!("there are {} registrars, none at {index}", self.all.len()),
            )
        };
        self.all.get(size(index)).ok_or_else(none)
    }
}

/// Opens registrars by words with commas between: "io_uring", "io_uring:N" (rings), "mlock",
/// "verbs", "verbs:NIC", "cuda", "cuda:N". KVMEM_NOT_AVAILABLE says what the first one that cannot
/// be had would need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_open(
    devices: *const c_char,
    out_registrars: *mut *mut kvmem_registrars,
) -> kvmem_status {
    guard(|| {
        let made = out(out_registrars, "out_registrars")?;
        // SAFETY: the caller's promise.
        let devices: Devices = unsafe { some_text(devices, "devices") }?.parse()?;
        made.put(kvmem_registrars::table().insert(Registrars::of(devices.open()?))?);
        Ok(())
    })
}

/// Registrars that are not there, for tests: NICs "simulated:0" and so on, at most 4096, that keep
/// books of their keys and take no time. A key covers at most `max_key_bytes` bytes, and each NIC
/// gives at most `max_keys` keys (UINT64_MAX: no limit).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_simulated(
    nics: u64,
    max_key_bytes: u64,
    max_keys: u64,
    out_registrars: *mut *mut kvmem_registrars,
) -> kvmem_status {
    guard(|| {
        let made = out(out_registrars, "out_registrars")?;
        if !(1..=4096).contains(&nics) {
            return Err(Fail::invalid(format_args!("{nics} NICs: ask for 1 to 4096")));
        }
        if max_key_bytes == 0 || max_keys == 0 {
            return Err(Fail::invalid(
                "a NIC that can take nothing is of no use: allow 1 key of 1 byte at least",
            ));
        }
        let limits = NicLimits { max_bytes: max_key_bytes, max_keys, ..NicLimits::default() };
        let machine =
            Machine::builder().nics(size(nics)).limits(limits).build().map_err(Fail::invalid)?;
        let nics: Vec<Arc<Nic>> = (0..size(nics)).filter_map(|nic| machine.nic(nic)).collect();
        let registrars = Registrars { all: machine.nics(), nics };
        made.put(kvmem_registrars::table().insert(registrars)?);
        Ok(())
    })
}

/// Lets a simulated registrar refuse: the `nth` call from now on, from 0, and the next ones,
/// `times` in all. With `deregister` 0 calls that ask for keys, with 1 calls that give them back.
/// KVMEM_UNSUPPORTED if it is not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_inject(
    registrars: *const kvmem_registrars,
    index: u64,
    deregister: u32,
    nth: u64,
    times: u64,
) -> kvmem_status {
    on(registrars, |registrars| {
        registrars.get(index)?;
        let real =
            || Fail::said(KVMEM_UNSUPPORTED, "only a simulated registrar can be told to refuse");
        let nic = registrars.nics.get(size(index)).ok_or_else(real)?;
        let fault = match crate::options::flag(deregister, "deregister")? {
            false => Fault::register(nth),
            true => Fault::deregister(nth),
        };
        nic.inject(fault.times(times).errno(Errno::EIO));
        Ok(())
    })
}

/// Keys that a simulated registrar has given and not got back. KVMEM_UNSUPPORTED if it is not
/// simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_live_keys(
    registrars: *const kvmem_registrars,
    index: u64,
    out_keys: *mut u64,
) -> kvmem_status {
    on(registrars, |registrars| {
        let keys = out(out_keys, "out_keys")?;
        registrars.get(index)?;
        let real = || Fail::said(KVMEM_UNSUPPORTED, "only a simulated registrar counts its keys");
        keys.put(registrars.nics.get(size(index)).ok_or_else(real)?.live_keys());
        Ok(())
    })
}

/// How many registrars there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_count(
    registrars: *const kvmem_registrars,
    out_count: *mut u64,
) -> kvmem_status {
    on(registrars, |registrars| {
        out(out_count, "out_count")?.put(registrars.all.len() as u64);
        Ok(())
    })
}

/// The name of the registrar at `index`, by which keys are asked for. `buffer` as for
/// kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_name(
    registrars: *const kvmem_registrars,
    index: u64,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    on(registrars, |registrars| {
        let name = registrars.get(index)?.name();
        // SAFETY: the caller's promise.
        unsafe { write_text(name, buffer, capacity, out_needed) }
    })
}

/// What a registrar can take.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_limits {
    /// The most bytes that one key can cover.
    pub max_key_bytes: u64,
    /// How many more keys it can give.
    pub max_keys: u64,
    /// Bytes for a key at which registering is quickest; 0: the fewer keys the better.
    pub good_key_bytes: u64,
    /// RLIMIT_MEMLOCK as it holds for it; UINT64_MAX: no limit that is known.
    pub memlock_bytes: u64,
}

/// What the registrar at `index` can take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_limits(
    registrars: *const kvmem_registrars,
    index: u64,
    out_limits: *mut kvmem_limits,
) -> kvmem_status {
    on(registrars, |registrars| {
        let found = out(out_limits, "out_limits")?;
        let limits = registrars.get(index)?.limits();
        found.put(kvmem_limits {
            max_key_bytes: limits.max_bytes,
            max_keys: limits.max_keys,
            good_key_bytes: limits.preferred_chunk_bytes.unwrap_or(0),
            memlock_bytes: limits.memlock.map_or(u64::MAX, |memlock| memlock.limit_bytes),
        });
        Ok(())
    })
}

/// Destroys the object. Registrars that nothing is registered with are closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_destroy(
    registrars: *mut kvmem_registrars,
) -> kvmem_status {
    destroy(registrars)
}

/// Which registrars there are on this machine, and what those that are missing would need; as a
/// text or JSON, see kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_discover_report(
    format: u32,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    guard(|| {
        let lines =
            |found: &Vec<DetectedDevice>| found.iter().map(|found| format!("{found}\n")).collect();
        let text = report(format, &discover(), lines)?;
        // SAFETY: the caller's promise.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}
