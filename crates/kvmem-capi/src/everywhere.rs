//! *Everywhere*: calls on a cache that reach the lower tier below it.

use std::ffi::c_void;

use kvmem::tier::BoxError;

use crate::call::{on, out};
use crate::error::CallError;
use crate::fetching::{copy_keys, write_values};
use crate::kv_cache::{copy_key, key_at, kvmem_kv_cache, kvmem_kv_cache_key, kvmem_kv_cache_value};
use crate::promise::ObjectPromise;
use crate::status::*;

/// Returns the values of `count` keys, pinned, in the same order. Values that the cache does not
/// have are fetched from its lower tier, all at once, and put into the cache. Each element of
/// `out_values` receives a value; its pin is NULL if neither has one, if the tier's is damaged, or
/// if no block could be reserved for it. Blocks until the drive is done.
///
/// A value that was put or removed meanwhile is never replaced by an older one of the tier. Without
/// a lower tier, these are the values in the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_or_fetch(
    cache: *const kvmem_kv_cache,
    keys: *const kvmem_kv_cache_key,
    count: u64,
    out_values: *mut kvmem_kv_cache_value,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `keys` and the bytes of each.
        let keys = unsafe { copy_keys(keys, count) }?;
        if !keys.is_empty() && out_values.is_null() {
            return Err(CallError::Null("out_values"));
        }
        // SAFETY: promise 1 of the C caller: there is a place for each of `count` values, and
        // `get_or_fetch` returns one for each key.
        unsafe { write_values(cache.get_or_fetch(&keys), out_values) }
    })
}

/// Converts the failure of a lower tier.
fn failed(error: &BoxError) -> CallError {
    CallError::new(
        KVMEM_ERR_INVALIDATE_FAILED,
        format_args!(
            "{error}: the lower tier may still hold what was removed, so it is not fetched any \
             more; call kvmem_kv_cache_clear_everywhere when the tier works again"
        ),
    )
}

/// Removes the value under a key from the cache and from its lower tier. `out_removed` (may be
/// NULL) receives whether the key had a value in the cache: 1 or 0.
///
/// KVMEM_ERR_INVALIDATE_FAILED: the tier failed. The value is removed from the cache nevertheless,
/// and the key is not fetched until kvmem_kv_cache_clear_everywhere succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_remove_everywhere(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    out_removed: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `key`.
        let key = copy_key(unsafe { key_at(key, key_bytes) }?)?;
        let found = cache.remove_everywhere(&key).map_err(|error| failed(&error))?;
        // SAFETY: promise 1 of the C caller, for `out_removed`.
        if let Ok(removed) = unsafe { out(out_removed, "") } {
            removed.put(u32::from(found.is_some()));
        }
        Ok(())
    })
}

/// Removes all values from the cache and from its lower tier. On success, keys that were not
/// fetched because of an earlier failure are fetched again.
///
/// KVMEM_ERR_INVALIDATE_FAILED: the tier failed. The values are removed from the cache
/// nevertheless, and no key is fetched until this call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_clear_everywhere(
    cache: *const kvmem_kv_cache,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| cache.clear_everywhere().map_err(|error| failed(&error)))
}
