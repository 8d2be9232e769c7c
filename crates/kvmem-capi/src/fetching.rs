//! *Fetching*: values that are being fetched from a lower tier.

use std::time::{Duration, Instant};

use kvmem::cache::{Fetching, Pinned};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::guard;
use crate::error::CallError;
use crate::kv_cache::{
    Key, copy_key, kvmem_kv_cache, kvmem_kv_cache_key, kvmem_kv_cache_pin, kvmem_kv_cache_value,
    no_value, value,
};
use crate::kv_value::borrow_keys;
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

object!(kvmem_kv_cache_fetching, CallFetching);

/// Longer than any program runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the time at which a timeout is over.
pub(crate) fn deadline(timeout_ns: u64) -> Instant {
    let now = Instant::now();
    now.checked_add(Duration::from_nanos(timeout_ns).min(FOREVER)).unwrap_or(now)
}

/// Copies keys.
pub(crate) fn copy_keys(keys: &In<kvmem_kv_cache_key>, count: u64) -> Result<Vec<Key>, CallError> {
    borrow_keys(keys, count)?.into_iter().map(copy_key).collect()
}

/// Writes values, whose pins the program owns then.
///
/// # Safety
/// The list has a place for each value.
pub(crate) unsafe fn write_values(
    found: impl IntoIterator<Item = Option<Pinned<Key>>>,
    out_values: &Out<kvmem_kv_cache_value>,
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
    // SAFETY: the promise of the caller.
    unsafe { out_values.put_all_if_wanted(values) };
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
    cache: Handle<kvmem_kv_cache>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_fetching: Out<*mut kvmem_kv_cache_fetching>,
) -> kvmem_status {
    cache.on(|cache| {
        let keys = copy_keys(&keys, count)?;
        let made = out_fetching.get("out_fetching")?;
        let fetching = CallFetching { fetching: cache.start_fetch(&keys), keys: count };
        made.insert(fetching)
    })
}

/// Returns whether all fetches are done: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_is_done(
    fetching: Handle<kvmem_kv_cache_fetching>,
    out_done: Out<u32>,
) -> kvmem_status {
    fetching.on(|fetching| out_done.put("out_done", u32::from(fetching.fetching.is_done())))
}

/// Waits until all fetches are done, for `timeout_ns` nanoseconds at most; UINT64_MAX waits without
/// a limit. `out_done` (may be NULL) receives whether they are: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_wait(
    fetching: Handle<kvmem_kv_cache_fetching>,
    timeout_ns: u64,
    out_done: Out<u32>,
) -> kvmem_status {
    fetching.on(|fetching| {
        let is_done = fetching.fetching.wait_until(deadline(timeout_ns));
        out_done.put_if_wanted(u32::from(is_done));
        Ok(())
    })
}

/// Takes the values that are there, without waiting, and destroys the handle. `count` is the number
/// of keys that were fetched; each element of `out_values` receives the value of a key, pinned, or
/// a NULL pin. Fetches that are not done are cancelled or end in the background, as by
/// kvmem_kv_cache_fetching_cancel. If the call fails, the handle stays, except for want of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_take(
    fetching: Owned<kvmem_kv_cache_fetching>,
    out_values: Out<kvmem_kv_cache_value>,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let keys = fetching.get(&promise)?.keys;
        if keys != count {
            return Err(CallError::invalid(format_args!(
                "count is {count}, and the fetch has {keys} keys: pass that number, and memory \
                 for as many values"
            )));
        }
        out_values.check_list(count, "out_values")?;
        let taken = fetching.take(&mut promise)?;
        // SAFETY: there is a place for each of `count` values.
        unsafe { write_values(taken.fetching.into_values(), &out_values) }
    })
}

/// Lets all fetches go on without the handle, and destroys it. Their values are in the cache when
/// they end, and are not pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_detach(
    fetching: Owned<kvmem_kv_cache_fetching>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        fetching.take(&mut promise)?.fetching.detach();
        Ok(())
    })
}

/// Cancels the fetches that no thread has begun, unless other calls want the same values, and
/// destroys the handle. A fetch that has begun ends in the background, and its value is in the
/// cache then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_fetching_cancel(
    fetching: Owned<kvmem_kv_cache_fetching>,
) -> kvmem_status {
    fetching.destroy()
}

/// Returns what kvmem_kv_cache_get_batch returns, as far as it is there after `timeout_ns`
/// nanoseconds. Fetches that have begun by then end in the background, and their values are in the
/// cache afterwards. The others are cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_batch_until(
    cache: Handle<kvmem_kv_cache>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    timeout_ns: u64,
    out_values: Out<kvmem_kv_cache_value>,
) -> kvmem_status {
    cache.on(|cache| {
        let deadline = deadline(timeout_ns);
        let keys = copy_keys(&keys, count)?;
        out_values.check_list(count, "out_values")?;
        // SAFETY: there is a place for each of `count` values.
        unsafe { write_values(cache.get_batch_until(&keys, deadline), &out_values) }
    })
}
