//! *Fetching*: values that are being fetched from a lower tier.

use std::time::{Duration, Instant};

use kvmem::cache::{Fetching, Pinned};

use crate::call::{destroy, guard, list, on, out};
use crate::error::CallError;
use crate::kv_cache::{
    Key, copy_key, key_at, kvmem_kv_cache, kvmem_kv_cache_key, kvmem_kv_cache_pin,
    kvmem_kv_cache_value, no_value, value,
};
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// Values of several keys, some of which are being fetched from the lower tier by a thread of the
/// cache. The values that are there are pinned. Owned by the caller:
/// kvmem_kv_cache_fetching_take, kvmem_kv_cache_fetching_detach or kvmem_kv_cache_fetching_cancel.
/// It keeps the cache. Any thread. In a forked child every call returns KVMEM_ERR_FORKED, except
/// kvmem_kv_cache_fetching_cancel.
pub struct kvmem_kv_cache_fetching {
    _opaque: [u8; 0],
}

/// The fetches of a call, and how many keys it had.
pub(crate) struct CallFetching {
    fetching: Fetching<Key>,
    keys: u64,
}

object!(kvmem_kv_cache_fetching, CallFetching, Fetching);

/// Longer than any program runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the time at which a timeout is over.
pub(crate) fn deadline(timeout_ns: u64) -> Instant {
    let now = Instant::now();
    now.checked_add(Duration::from_nanos(timeout_ns).min(FOREVER)).unwrap_or(now)
}

/// Copies keys.
///
/// # Safety
/// Promise 1 of the C caller, for `keys` and the bytes of each.
pub(crate) unsafe fn copy_keys(
    keys: *const kvmem_kv_cache_key,
    count: u64,
) -> Result<Vec<Key>, CallError> {
    // SAFETY: the promise of the caller.
    unsafe { list(keys, count, "keys") }?
        .iter()
        .map(|key| copy_key(unsafe { key_at(key.key, key.key_bytes) }?))
        .collect()
}

/// Writes values, whose pins the program owns then.
///
/// # Safety
/// Promise 1 of the C caller: `out_values` has a place for each value.
pub(crate) unsafe fn write_values(
    found: impl IntoIterator<Item = Option<Pinned<Key>>>,
    out_values: *mut kvmem_kv_cache_value,
) -> Result<(), CallError> {
    let mut values = Vec::new();
    for found in found {
        match found.map_or(Ok(no_value()), value) {
            Ok(value) => values.push(value),
            Err(error) => {
                release(&values);
                return Err(error);
            }
        }
    }
    for (index, value) in values.into_iter().enumerate() {
        // SAFETY: the promise of the caller.
        unsafe { out_values.add(index).write(value) };
    }
    Ok(())
}

/// Releases pins that the program has not received.
fn release(values: &[kvmem_kv_cache_value]) {
    // SAFETY: the handles were made in this call, and no other call knows them.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    for value in values.iter().filter(|value| !value.pin.is_null()) {
        drop(kvmem_kv_cache_pin::table().take(&mut promise, value.pin));
    }
}

/// Begins to fetch from the lower tier what the cache lacks of `count` keys, and returns at once. A
/// thread of the cache reads; the first such call starts it, and the end of the cache ends it.
/// Other calls for the same keys share the reads. Without a lower tier there is nothing to wait
/// for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_start_fetch(
    cache: *const kvmem_kv_cache,
    keys: *const kvmem_kv_cache_key,
    count: u64,
    out_fetching: *mut *mut kvmem_kv_cache_fetching,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `keys` and the bytes of each.
        let keys = unsafe { copy_keys(keys, count) }?;
        // SAFETY: promise 1 of the C caller, for `out_fetching`.
        let made = unsafe { out(out_fetching, "out_fetching") }?;
        let fetching = CallFetching { fetching: cache.start_fetch(&keys), keys: count };
        made.put(kvmem_kv_cache_fetching::table().insert(fetching)?);
        Ok(())
    })
}

/// Returns whether all fetches are done: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_is_done(
    fetching: *const kvmem_kv_cache_fetching,
    out_done: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, fetching, |fetching| {
        // SAFETY: promise 1 of the C caller, for `out_done`.
        let done = unsafe { out(out_done, "out_done") }?;
        done.put(u32::from(fetching.fetching.is_done()));
        Ok(())
    })
}

/// Waits until all fetches are done, for `timeout_ns` nanoseconds at most; UINT64_MAX waits without
/// a limit. `out_done` (may be NULL) receives whether they are: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_wait(
    fetching: *const kvmem_kv_cache_fetching,
    timeout_ns: u64,
    out_done: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, fetching, |fetching| {
        let is_done = fetching.fetching.wait_until(deadline(timeout_ns));
        // SAFETY: promise 1 of the C caller, for `out_done`.
        if let Ok(done) = unsafe { out(out_done, "") } {
            done.put(u32::from(is_done));
        }
        Ok(())
    })
}

/// Takes the values that are there, without waiting, and destroys the handle. `count` is the number
/// of keys that were fetched; each element of `out_values` receives the value of a key, pinned, or
/// a NULL pin. Fetches that are not done are cancelled or end in the background, as by
/// kvmem_kv_cache_fetching_cancel. If the call fails, the handle stays, except for want of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_take(
    fetching: *mut kvmem_kv_cache_fetching,
    out_values: *mut kvmem_kv_cache_value,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let table = kvmem_kv_cache_fetching::table();
        let keys = table.get(&promise, fetching)?.keys;
        if keys != count {
            return Err(CallError::invalid(format_args!(
                "count is {count}, and the fetch has {keys} keys: pass that number, and memory \
                 for as many values"
            )));
        }
        if count > 0 && out_values.is_null() {
            return Err(CallError::Null("out_values"));
        }
        let taken = table.take(&mut promise, fetching)?;
        // SAFETY: promise 1 of the C caller: there is a place for each of `count` values.
        unsafe { write_values(taken.fetching.into_values(), out_values) }
    })
}

/// Lets all fetches go on without the handle, and destroys it. Their values are in the cache when
/// they end, and are not pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_detach(
    fetching: *mut kvmem_kv_cache_fetching,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        kvmem_kv_cache_fetching::table().take(&mut promise, fetching)?.fetching.detach();
        Ok(())
    })
}

/// Cancels the fetches that no thread has begun, unless other calls want the same values, and
/// destroys the handle. A fetch that has begun ends in the background, and its value is in the
/// cache then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_cancel(
    fetching: *mut kvmem_kv_cache_fetching,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, fetching)
}

/// Returns what kvmem_kv_cache_get_batch returns, as far as it is there after `timeout_ns`
/// nanoseconds. Fetches that have begun by then end in the background, and their values are in the
/// cache afterwards. The others are cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_batch_until(
    cache: *const kvmem_kv_cache,
    keys: *const kvmem_kv_cache_key,
    count: u64,
    timeout_ns: u64,
    out_values: *mut kvmem_kv_cache_value,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        let deadline = deadline(timeout_ns);
        // SAFETY: promise 1 of the C caller, for `keys` and the bytes of each.
        let keys = unsafe { copy_keys(keys, count) }?;
        if !keys.is_empty() && out_values.is_null() {
            return Err(CallError::Null("out_values"));
        }
        // SAFETY: promise 1 of the C caller: there is a place for each of `count` values.
        unsafe { write_values(cache.get_batch_until(&keys, deadline), out_values) }
    })
}
