//! *Testing*: simulated registrars with injected failures, for tests of programs that register, and
//! a lower tier that records its calls.
//!
//! These functions are declared in `kvmem/testing.h`, not in `kvmem.h`. Only a library that is
//! built with the feature `testing` has them.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, LazyLock};

use kvmem::arena::Errno;
use kvmem_testkit::counting_tier::CountingTier;
use kvmem_testkit::simulated::{Fault, NicLimits, SimulatedMachine, SimulatedNic};

use crate::argument::{Handle, In, Out};
use crate::call::{guard, size};
use crate::error::CallError;
use crate::hints::kvmem_value_hints;
use crate::lower_tier::kvmem_lower_tier;
use crate::registrars::{Registrars, kvmem_registrars};
use crate::status::*;

/// Makes simulated NICs with the names "simulated:0", "simulated:1" and so on, at most 4096. They
/// only count their keys, and their calls take no time. A key covers at most `max_key_bytes` bytes.
/// Each NIC gives at most `max_keys` keys (UINT64_MAX: no limit).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_simulated(
    nics: u64,
    max_key_bytes: u64,
    max_keys: u64,
    out_registrars: Out<*mut kvmem_registrars>,
) -> kvmem_status {
    guard(|| {
        let made = out_registrars.get("out_registrars")?;
        if !(1..=4096).contains(&nics) {
            return Err(CallError::invalid(format_args!("nics is {nics}: use 1 to 4096")));
        }
        if max_key_bytes == 0 || max_keys == 0 {
            return Err(CallError::invalid(
                "max_key_bytes or max_keys is 0: allow at least 1 key of 1 byte",
            ));
        }
        let limits = NicLimits { max_bytes: max_key_bytes, max_keys, ..NicLimits::default() };
        let machine = SimulatedMachine::builder().nics(size(nics)).limits(limits).build();
        let nics: Vec<Arc<SimulatedNic>> =
            (0..size(nics)).filter_map(|nic| machine.nic(nic)).collect();
        let mut registrars = Registrars::of(machine.nics());
        registrars.nics = nics;
        made.insert(registrars)
    })
}

/// Makes calls of a simulated registrar fail: the `nth` call from now on, counted from 0, and the
/// following ones, `times` in all. `deregister` selects the calls: 0 for those that request keys, 1
/// for those that give them back. KVMEM_ERR_UNSUPPORTED if the registrar is not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_inject(
    registrars: Handle<kvmem_registrars>,
    index: u64,
    deregister: u32,
    nth: u64,
    times: u64,
) -> kvmem_status {
    registrars.on(|registrars| {
        registrars.get(index)?;
        let real = || {
            CallError::new(
                KVMEM_ERR_UNSUPPORTED,
                "this registrar is not simulated: failures can be injected only into simulated \
                 ones",
            )
        };
        let nic = registrars.nics.get(size(index)).ok_or_else(real)?;
        let fault = match crate::options::flag(deregister, "deregister")? {
            false => Fault::register(nth),
            true => Fault::deregister(nth),
        };
        nic.inject(fault.times(times).errno(Errno::EIO));
        Ok(())
    })
}

/// Returns the number of keys that a simulated registrar has given and not received back.
/// KVMEM_ERR_UNSUPPORTED if the registrar is not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_live_keys(
    registrars: Handle<kvmem_registrars>,
    index: u64,
    out_keys: Out<u64>,
) -> kvmem_status {
    registrars.on(|registrars| {
        let keys = out_keys.get("out_keys")?;
        registrars.get(index)?;
        let real = || {
            CallError::new(
                KVMEM_ERR_UNSUPPORTED,
                "this registrar is not simulated: only simulated ones count their keys",
            )
        };
        keys.put(registrars.nics.get(size(index)).ok_or_else(real)?.live_keys());
        Ok(())
    })
}

/// The only tier that records its calls.
static COUNTING: LazyLock<Arc<CountingTier>> = LazyLock::new(Arc::default);

/// Makes a lower tier in memory that records its calls. All of them are the same tier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_counting(
    out_lower_tier: Out<*mut kvmem_lower_tier>,
) -> kvmem_status {
    guard(|| {
        let made = out_lower_tier.get("out_lower_tier")?;
        made.insert(Arc::clone(&*COUNTING) as _)
    })
}

/// Writes the calls of that tier since the last call of this function, such as "ask+fetch", and a
/// NUL; "-" if there were none. `out_needed` (may be NULL) receives the number of bytes with the
/// NUL. KVMEM_ERR_BUFFER_TOO_SMALL: the text was truncated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_calls(
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    guard(|| buffer.write_text(&COUNTING.take_calls(), capacity, &out_needed))
}

/// Returns the hints with which that tier has the value of a key. KVMEM_ERR_NOT_FOUND if it has
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_hints(
    key: In<c_void>,
    key_bytes: u64,
    out_hints: Out<kvmem_value_hints>,
) -> kvmem_status {
    guard(|| {
        let (found, key) = (out_hints.get("out_hints")?, key.key(key_bytes)?);
        let hints = COUNTING.hints(key).ok_or(CallError::NotFound)?;
        found.put(hints.into());
        Ok(())
    })
}
