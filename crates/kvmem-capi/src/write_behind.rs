//! *Write behind*: the queue of evicted values between a cache and its lower tier.

use std::ffi::c_char;

use crate::call::{on, out, write_text};
use crate::fetching::deadline;
use crate::kv_cache::kvmem_kv_cache;
use crate::promise::ObjectPromise;
use crate::stats::kvmem_write_behind_stats;
use crate::status::*;

/// Waits until every value that the cache evicted before has been given to the lower tier, for
/// `timeout_ns` nanoseconds at most; UINT64_MAX waits without a limit. Values that are evicted
/// meanwhile do not prolong it. `out_flushed` (may be NULL) receives whether all were given: 1 or
/// 0. Without a queue there is nothing to wait for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_flush(
    cache: *const kvmem_kv_cache,
    timeout_ns: u64,
    out_flushed: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        let until = deadline(timeout_ns);
        let is_flushed = cache.queue.as_ref().is_none_or(|queue| queue.flush_until(until));
        // SAFETY: promise 1 of the C caller, for `out_flushed`.
        if let Ok(flushed) = unsafe { out(out_flushed, "") } {
            flushed.put(u32::from(is_flushed));
        }
        Ok(())
    })
}

/// Reads the statistics of the queue of evicted values; zeros without a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_write_behind_stats(
    cache: *const kvmem_kv_cache,
    out_stats: *mut kvmem_write_behind_stats,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `out_stats`.
        let figures = unsafe { out(out_stats, "out_stats") }?;
        let stats = cache.queue.as_ref().map(|queue| queue.stats()).unwrap_or_default();
        figures.put((&stats).into());
        Ok(())
    })
}

/// Writes the message of the latest failure of the lower tier in a writer of the queue, and its
/// NUL. An empty text: there was none. `out_needed` (may be NULL) receives the number of bytes with
/// the NUL. KVMEM_ERR_BUFFER_TOO_SMALL: the text was truncated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_write_behind_error(
    cache: *const kvmem_kv_cache,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        let text = cache.queue.as_ref().and_then(|queue| queue.last_error()).unwrap_or_default();
        // SAFETY: promise 1 of the C caller, for `buffer` and `out_needed`.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}
