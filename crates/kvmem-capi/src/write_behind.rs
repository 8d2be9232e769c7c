//! *Write behind*: the queue of evicted values between a cache and its lower tier.

use std::ffi::c_char;

use crate::argument::{Handle, Out};
use crate::fetching::deadline;
use crate::kv_cache::kvmem_kv_cache;
use crate::stats::kvmem_write_behind_stats;
use crate::status::*;

/// Waits until every value that the cache evicted before has been given to the lower tier, for
/// `timeout_ns` nanoseconds at most; UINT64_MAX waits without a limit. Values that are evicted
/// meanwhile do not prolong it. `out_flushed` (may be NULL) receives whether all were given: 1 or
/// 0. Without a queue there is nothing to wait for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_flush(
    cache: Handle<kvmem_kv_cache>,
    timeout_ns: u64,
    out_flushed: Out<u32>,
) -> kvmem_status {
    cache.on(|cache| {
        let until = deadline(timeout_ns);
        let is_flushed = cache.queue.as_ref().is_none_or(|queue| queue.flush_until(until));
        out_flushed.put_if_wanted(u32::from(is_flushed));
        Ok(())
    })
}

/// Reads the statistics of the queue of evicted values; zeros without a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_write_behind_stats(
    cache: Handle<kvmem_kv_cache>,
    out_stats: Out<kvmem_write_behind_stats>,
) -> kvmem_status {
    cache.on(|cache| {
        let figures = out_stats.get("out_stats")?;
        let stats = cache.queue.as_ref().map(|queue| queue.stats()).unwrap_or_default();
        figures.put(kvmem_write_behind_stats::new(&stats));
        Ok(())
    })
}

/// Writes the message of the latest failure of the lower tier in a writer of the queue, and its
/// NUL. An empty text: there was none. `out_needed` (may be NULL) receives the number of bytes with
/// the NUL. KVMEM_ERR_BUFFER_TOO_SMALL: the text was truncated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_write_behind_error(
    cache: Handle<kvmem_kv_cache>,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    cache.on(|cache| {
        let text = cache.queue.as_ref().and_then(|queue| queue.last_error()).unwrap_or_default();
        buffer.write_text(&text, capacity, &out_needed)
    })
}
