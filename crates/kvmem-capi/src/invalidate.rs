//! *Invalidate*: removes values from the cache and from a lower tier as one step.

use std::ffi::{c_int, c_void};

use crate::call::{on, out};
use crate::error::CallError;
use crate::kv_cache::{key_at, kvmem_kv_cache};
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;

/// Invalidates a lower tier: removes its copy, and returns 0. Any other number means that the tier
/// may still hold a copy. Called once, by the calling thread, before the call that it was passed to
/// returns. The cache holds no lock during the call. It must return (no longjmp, no C++ exception).
pub type kvmem_kv_cache_invalidate_fn = Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>;

/// Removes the value under a key from the cache and from a lower tier. While `invalidate` runs, the
/// key is not leased, so no thread fetches the value that is being invalidated. `out_removed` (may
/// be NULL) receives whether the key had a value in the cache: 1 or 0. `invalidate` is called in
/// both cases.
///
/// KVMEM_ERR_INVALIDATE_FAILED: `invalidate` failed. The value is removed from the cache
/// nevertheless. The key is not leased until kvmem_kv_cache_clear_with succeeds, so a copy in the
/// lower tier does not come back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_remove_with(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    invalidate: kvmem_kv_cache_invalidate_fn,
    user: *mut c_void,
    out_removed: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `key`.
        let key = unsafe { key_at(key, key_bytes) }?;
        let invalidate = invalidate.ok_or(CallError::Null("invalidate"))?;
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with
        // `user` during this call, by this thread.
        let found = cache.remove_with(key, || invalidate_result(unsafe { invalidate(user) }))?;
        // SAFETY: promise 1 of the C caller, for `out_removed`.
        if let Ok(removed) = unsafe { out(out_removed, "") } {
            removed.put(u32::from(found.is_some()));
        }
        Ok(())
    })
}

/// Removes all values from the cache and from a lower tier, as kvmem_kv_cache_remove_with does for
/// one. On success, keys that were not leased because of an earlier failure are leased again.
///
/// KVMEM_ERR_INVALIDATE_FAILED: `invalidate` failed. The values are removed from the cache
/// nevertheless, and no key is leased until this call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_clear_with(
    cache: *const kvmem_kv_cache,
    invalidate: kvmem_kv_cache_invalidate_fn,
    user: *mut c_void,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        let invalidate = invalidate.ok_or(CallError::Null("invalidate"))?;
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with
        // `user` during this call, by this thread.
        cache.clear_with(|| invalidate_result(unsafe { invalidate(user) }))
    })
}

/// Converts the return value of an `invalidate` function.
fn invalidate_result(answer: c_int) -> Result<(), CallError> {
    if answer == 0 { Ok(()) } else { Err(CallError::InvalidateFailed(answer)) }
}
