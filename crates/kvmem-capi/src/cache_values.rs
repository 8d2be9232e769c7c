//! *Values of a cache*: calls that look values up, count them and remove them, in memory and in the
//! lower tier, or in memory alone.

use std::ffi::c_void;

use kvmem::cache::LowerTierError;

use crate::argument::{Handle, In, Out};
use crate::error::CallError;
use crate::fetching::{copy_keys, write_values};
use crate::kv_cache::{kvmem_kv_cache, kvmem_kv_cache_key, kvmem_kv_cache_value, value};
use crate::status::*;

/// Returns the value under a key, pinned: from memory, or else from the lower tier, which is
/// fetched and put into the cache. This counts as a use. KVMEM_ERR_NOT_FOUND if neither has a
/// value, if the tier's is damaged, or if no block could be reserved for it. Blocks while the tier
/// reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    out_value: Out<kvmem_kv_cache_value>,
) -> kvmem_status {
    cache.on(|cache| {
        let found = out_value.get("out_value")?;
        let key = key.key(key_bytes)?;
        found.put(value(cache.get(key).ok_or(CallError::NotFound)?)?);
        Ok(())
    })
}

/// Returns the value that memory has under a key, pinned. This counts as a use, and calls no lower
/// tier. KVMEM_ERR_NOT_FOUND if memory has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_in_memory(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    out_value: Out<kvmem_kv_cache_value>,
) -> kvmem_status {
    cache.on(|cache| {
        let found = out_value.get("out_value")?;
        let key = key.key(key_bytes)?;
        found.put(value(cache.get_in_memory(key).ok_or(CallError::NotFound)?)?);
        Ok(())
    })
}

/// Returns the values of `count` keys, pinned, in the same order. Values that the cache does not
/// have are fetched from its lower tier, all at once, and put into the cache. Each element of
/// `out_values` receives a value; its pin is NULL if neither has one, if the tier's is damaged, or
/// if no block could be reserved for it. Blocks until the drive is done.
///
/// A value that was put or removed meanwhile is never replaced by an older one of the tier. Without
/// a lower tier, these are the values in the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_batch(
    cache: Handle<kvmem_kv_cache>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_values: Out<kvmem_kv_cache_value>,
) -> kvmem_status {
    cache.on(|cache| {
        let keys = copy_keys(&keys, count)?;
        out_values.check_list(count, "out_values")?;
        // SAFETY: there is a place for each of `count` values, and
        // `get_batch` returns one for each key.
        unsafe { write_values(cache.get_batch(&keys), &out_values) }
    })
}

/// Returns whether a key has a value, in memory or in the lower tier: 1 or 0. This does not count
/// as a use. The tier is asked if memory has none, and may wait for a network.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_contains(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    out_contains: Out<u32>,
) -> kvmem_status {
    cache.on(|cache| {
        let found = out_contains.get("out_contains")?;
        let key = key.key(key_bytes)?;
        found.put(u32::from(cache.contains(key)));
        Ok(())
    })
}

/// Returns whether memory has a value under a key: 1 or 0. This does not count as a use, and calls
/// no lower tier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_contains_in_memory(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    out_contains: Out<u32>,
) -> kvmem_status {
    cache.on(|cache| {
        let found = out_contains.get("out_contains")?;
        let key = key.key(key_bytes)?;
        found.put(u32::from(cache.contains_in_memory(key)));
        Ok(())
    })
}

/// Returns the number of values in memory, those that are being written included, and in the lower
/// tier, each value once. Exact while no other thread changes the cache or the tier; values of a
/// tier that does not know how many it has, such as a cluster, are not counted. With a tier
/// O(values in memory).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_len(
    cache: Handle<kvmem_kv_cache>,
    out_values: Out<u64>,
) -> kvmem_status {
    cache.on(|cache| out_values.put("out_values", cache.len()))
}

/// Returns the number of values in memory, those that are being written included. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_len_in_memory(
    cache: Handle<kvmem_kv_cache>,
    out_values: Out<u64>,
) -> kvmem_status {
    cache.on(|cache| out_values.put("out_values", cache.len_in_memory()))
}

/// Converts the failure of a lower tier.
fn failed(error: &LowerTierError) -> CallError {
    CallError::new(KVMEM_ERR_INVALIDATE_FAILED, format_args!("{error}"))
}

/// Removes the value under a key from memory and from the lower tier. `out_removed` (may be NULL)
/// receives whether memory had a value: 1 or 0. Its bytes are freed when its last pin is released.
///
/// KVMEM_ERR_INVALIDATE_FAILED: the tier failed. The value is removed from memory nevertheless, and
/// the key is not fetched until kvmem_kv_cache_clear succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_remove(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    out_removed: Out<u32>,
) -> kvmem_status {
    cache.on(|cache| {
        let key = key.key(key_bytes)?;
        let found = cache.remove(key).map_err(|error| failed(&error))?;
        out_removed.put_if_wanted(u32::from(found.is_some()));
        Ok(())
    })
}

/// Removes the value under a key from memory alone. `out_removed` (may be NULL) receives whether
/// memory had a value: 1 or 0. A value that the lower tier has under the key stays there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_remove_in_memory(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    out_removed: Out<u32>,
) -> kvmem_status {
    cache.on(|cache| {
        let key = key.key(key_bytes)?;
        let found = cache.remove_in_memory(key);
        out_removed.put_if_wanted(u32::from(found.is_some()));
        Ok(())
    })
}

/// Removes all values from memory and from the lower tier. Pins stay valid. On success, keys that
/// were not fetched because of an earlier failure are fetched again.
///
/// KVMEM_ERR_INVALIDATE_FAILED: the tier failed. The values are removed from memory nevertheless,
/// and no key is fetched until this call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_clear(cache: Handle<kvmem_kv_cache>) -> kvmem_status {
    cache.on(|cache| cache.clear().map_err(|error| failed(&error)))
}

/// Removes all values from memory alone. Pins and the values of the lower tier stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_clear_in_memory(
    cache: Handle<kvmem_kv_cache>,
) -> kvmem_status {
    cache.on(|cache| {
        cache.clear_in_memory();
        Ok(())
    })
}
