//! *Lease*: the right to put a value in that was fetched from a lower tier.

use std::ffi::c_void;

use kvmem::cache::{Lease, Leased, Superseded};

use crate::call::{destroy, guard, on, out};
use crate::error::CallError;
use crate::kv_cache::{
    Key, key_at, kvmem_kv_cache, kvmem_kv_cache_reservation, kvmem_kv_cache_value, no_value, value,
};
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// The right to put a value under a key that was fetched from a lower tier. The lease becomes
/// invalid if a value is put, removed or cleared under the key meanwhile. Owned by the caller:
/// kvmem_kv_cache_reservation_commit_leased or kvmem_kv_cache_lease_release. May outlive its cache.
/// Any thread.
pub struct kvmem_kv_cache_lease {
    _opaque: [u8; 0],
}

object!(kvmem_kv_cache_lease, Lease<Key>, Lease);

/// The key has no value, and a lower tier has the latest one: fetch it, and commit it under
/// `lease`.
pub const KVMEM_LEASED_LEASE: u32 = 0;
/// The key has a value: `value`, pinned. This counts as a use.
pub const KVMEM_LEASED_PRESENT: u32 = 1;
/// The key has no value, and that of a lower tier may be old: a value is on its way to the tier,
/// the tier is being invalidated, or one of the two failed before. Treat it as a miss.
pub const KVMEM_LEASED_UNAVAILABLE: u32 = 2;

/// The result of kvmem_kv_cache_get_lease.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_leased {
    /// KVMEM_LEASED_LEASE, KVMEM_LEASED_PRESENT or KVMEM_LEASED_UNAVAILABLE.
    pub outcome: u32,
    /// The lease, with KVMEM_LEASED_LEASE; otherwise NULL.
    pub lease: *mut kvmem_kv_cache_lease,
    /// The value, with KVMEM_LEASED_PRESENT; otherwise its pin is NULL.
    pub value: kvmem_kv_cache_value,
}

/// Requests a lease on a key. Request it before you ask a lower tier for the value. Counts as
/// neither a hit nor a miss. A key may have several leases at once; the first commit makes the
/// others invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_lease(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    out_leased: *mut kvmem_kv_cache_leased,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `out_leased`.
        let leased = unsafe { out(out_leased, "out_leased") }?;
        // SAFETY: promise 1 of the C caller, for `key`.
        let key = unsafe { key_at(key, key_bytes) }?;
        let none = kvmem_kv_cache_leased {
            outcome: KVMEM_LEASED_UNAVAILABLE,
            lease: std::ptr::null_mut(),
            value: no_value(),
        };
        leased.put(match cache.lease(key) {
            Leased::Lease(lease) => {
                let lease = kvmem_kv_cache_lease::table().insert(lease)?;
                kvmem_kv_cache_leased { outcome: KVMEM_LEASED_LEASE, lease, ..none }
            }
            Leased::Present(pinned) => kvmem_kv_cache_leased {
                outcome: KVMEM_LEASED_PRESENT,
                value: value(pinned)?,
                ..none
            },
            Leased::Unavailable => none,
        });
        Ok(())
    })
}

/// Returns whether the lease is still valid: 1 or 0. It is valid if no value has been put or
/// removed under the key so far. The answer may change at once; the commit decides. A program that
/// fetches in several steps can use this to stop early.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_lease_is_valid(
    lease: *const kvmem_kv_cache_lease,
    out_valid: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, lease, |lease| {
        // SAFETY: promise 1 of the C caller, for `out_valid`.
        let place = unsafe { out(out_valid, "out_valid") }?;
        place.put(u32::from(lease.is_valid()));
        Ok(())
    })
}

/// Releases a lease without a commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_lease_release(
    lease: *mut kvmem_kv_cache_lease,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, lease)
}

/// Puts the reserved value under its key, like kvmem_kv_cache_reservation_commit, if the lease is
/// still valid: no value was put, removed or cleared under the key after the lease was taken.
/// Consumes the reservation and the lease. `out_value` (may be NULL) receives the value, pinned.
///
/// KVMEM_ERR_SUPERSEDED: the lease was not valid, and is consumed. The reservation stays, with its
/// contents; programs usually release it. `out_value` receives the key's current value, pinned, or
/// a NULL pin. KVMEM_ERR_INVALID_ARGUMENT: the lease is for another key or another cache; both
/// stay. KVMEM_ERR_FORKED in a forked child; both stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_commit_leased(
    reservation: *mut kvmem_kv_cache_reservation,
    lease: *mut kvmem_kv_cache_lease,
    out_value: *mut kvmem_kv_cache_value,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let (reservations, leases) =
            (kvmem_kv_cache_reservation::table(), kvmem_kv_cache_lease::table());
        let reserved = reservations.get(&promise, reservation)?;
        if !leases.get(&promise, lease)?.covers(reserved) {
            return Err(CallError::invalid(
                "the lease is for another key or another cache than the reservation: commit with \
                 the lease that was taken for its key",
            ));
        }
        let mut found = None;
        let done = reservations.take_unless(&mut promise, reservation, |promise, reserved| {
            let lease = match leases.take(promise, lease) {
                Ok(lease) => lease,
                Err(error) => return Err((reserved, error)),
            };
            match reserved.commit_leased(lease) {
                Ok(pinned) => {
                    found = Some(pinned);
                    Ok(())
                }
                Err(Superseded { reservation, found: there }) => {
                    found = there;
                    Err((reservation, CallError::Superseded))
                }
            }
        });
        // SAFETY: promise 1 of the C caller, for `out_value`.
        let place = unsafe { out(out_value, "") };
        if let (Ok(()) | Err(CallError::Superseded), Ok(there)) = (&done, place) {
            there.put(found.map_or(Ok(no_value()), value)?);
        }
        done
    })
}
