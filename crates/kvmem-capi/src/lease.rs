//! *Lease*: the right to put in what is fetched from a lower tier.

use std::ffi::c_void;

use kvmem::pool::kv_cache::{Lease, Leased, Superseded};

use crate::call::{destroy, guard, on, out};
use crate::fail::Fail;
use crate::kv_cache::{
    Key, key_at, kvmem_kv_cache, kvmem_kv_reservation, kvmem_kv_value, no_value, value,
};
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// The right to put in under a key what is fetched from a lower tier, unless something is put,
/// removed or cleared under it meanwhile: that breaks it. Owned by the caller:
/// kvmem_kv_commit_leased or kvmem_kv_lease_release. It outlives its cache. Any thread.
pub struct kvmem_kv_lease {
    _opaque: [u8; 0],
}

object!(kvmem_kv_lease, Lease<Key>, Lease);

/// There is no value, and what a lower tier has is the latest: fetch it, and commit it under
/// `lease`.
pub const KVMEM_LEASED_LEASE: u32 = 0;
/// There is a value: `value`, pinned; it counts as used.
pub const KVMEM_LEASED_PRESENT: u32 = 1;
/// There is no value, and what a lower tier has may be old: one is just being handed over to it, or
/// it is being told to forget one, or it failed at that. Take it for a miss.
pub const KVMEM_LEASED_BUSY: u32 = 2;

/// What kvmem_kv_get_lease found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_leased {
    /// KVMEM_LEASED_LEASE, KVMEM_LEASED_PRESENT or KVMEM_LEASED_BUSY.
    pub outcome: u32,
    /// The lease, with KVMEM_LEASED_LEASE; else NULL.
    pub lease: *mut kvmem_kv_lease,
    /// The value, with KVMEM_LEASED_PRESENT; else its pin is NULL.
    pub value: kvmem_kv_value,
}

/// Asks for the right to put in what is fetched from a lower tier. Take it before anything is asked
/// of that. It counts for neither a hit nor a miss. Several leases of a key may live at once; the
/// first commit breaks the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_get_lease(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    out_leased: *mut kvmem_kv_leased,
) -> kvmem_status {
    on(cache, |cache| {
        let leased = out(out_leased, "out_leased")?;
        // SAFETY: the caller's promise.
        let key = unsafe { key_at(key, key_bytes) }?;
        let none = kvmem_kv_leased {
            outcome: KVMEM_LEASED_BUSY,
            lease: std::ptr::null_mut(),
            value: no_value(),
        };
        leased.put(match cache.lease(key) {
            Leased::Lease(lease) => {
                let lease = kvmem_kv_lease::table().insert(lease)?;
                kvmem_kv_leased { outcome: KVMEM_LEASED_LEASE, lease, ..none }
            }
            Leased::Present(pinned) => {
                kvmem_kv_leased { outcome: KVMEM_LEASED_PRESENT, value: value(pinned)?, ..none }
            }
            Leased::Unavailable => none,
        });
        Ok(())
    })
}

/// Whether nothing has been put or removed under the key so far: 1 or 0. That may change at once:
/// what counts is the commit. With this, who fetches in steps can end early.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_lease_is_unbroken(
    lease: *const kvmem_kv_lease,
    out_unbroken: *mut u32,
) -> kvmem_status {
    on(lease, |lease| {
        out(out_unbroken, "out_unbroken")?.put(u32::from(lease.is_valid()));
        Ok(())
    })
}

/// Gives a lease up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_lease_release(lease: *mut kvmem_kv_lease) -> kvmem_status {
    destroy(lease)
}

/// Puts a value in, as kvmem_kv_commit, if nothing was put, removed or cleared under the key since
/// the lease was taken. Both are gone afterwards; `out_value` (may be NULL) is the value, pinned.
///
/// KVMEM_SUPERSEDED: the lease was broken, and is gone; the reservation stays, with what was
/// written, to be abandoned in general; `out_value` is what the key has now, pinned, or its pin is
/// NULL. KVMEM_INVALID_ARGUMENT: the lease is of another key, or of another cache; both stay.
/// KVMEM_FORKED in a forked child; both stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_commit_leased(
    reservation: *mut kvmem_kv_reservation,
    lease: *mut kvmem_kv_lease,
    out_value: *mut kvmem_kv_value,
) -> kvmem_status {
    guard(|| {
        let (rooms, leases) = (kvmem_kv_reservation::table(), kvmem_kv_lease::table());
        let room = rooms.get(reservation)?;
        if !leases.get(lease)?.covers(room) {
            return Err(Fail::invalid(
                "the lease is of another key, or of another cache, than the reservation: commit under the lease that was taken for \
                 its key",
            ));
        }
        let mut found = None;
        let done = rooms.take_unless(reservation, |room| {
            let lease = match leases.take(lease) {
                Ok(lease) => lease,
                Err(fail) => return Err((room, fail)),
            };
            match room.commit_leased(lease) {
                Ok(pinned) => {
                    found = Some(pinned);
                    Ok(())
                }
                Err(Superseded { reservation, found: there }) => {
                    found = there;
                    Err((reservation, Fail::Superseded))
                }
            }
        });
        if let (Ok(()) | Err(Fail::Superseded), Ok(there)) = (&done, out(out_value, "")) {
            there.put(found.map_or(Ok(no_value()), value)?);
        }
        done
    })
}
