//! *Write behind*: the queue of evicted values between a cache and its lower tier.

use std::ffi::c_char;
use std::ops::Deref;
use std::sync::Arc;

use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{OnDrop, WhenFull, WriteBehind};

use crate::call::{on, out, size, write_text};
use crate::error::CallError;
use crate::fetching::deadline;
use crate::kv_cache::{Key, kvmem_kv_cache, kvmem_kv_cache_options};
use crate::lower_tier::SharedLowerTier;
use crate::options::check_reserved;
use crate::promise::ObjectPromise;
use crate::stats::kvmem_write_behind_stats;
use crate::status::*;

/// A full queue: the thread that evicts a value waits until a writer has made room. The default.
pub const KVMEM_WHEN_FULL_WAIT: u32 = 0;
/// A full queue: the value is not written, and an older one of the lower tier is removed.
pub const KVMEM_WHEN_FULL_DROP: u32 = 1;

/// The end of the cache: the values in the queue are written first. The default.
pub const KVMEM_ON_DROP_WRITE: u32 = 0;
/// The end of the cache: the values in the queue are lost, and older ones of the lower tier are
/// removed first.
pub const KVMEM_ON_DROP_DISCARD: u32 = 1;

/// The maximum of `write_behind_writers`.
const MAX_WRITERS: u32 = 64;

/// A cache, and the queue below it.
pub(crate) struct QueuedCache {
    cache: KvCache<Key>,
    queue: Option<Arc<WriteBehind>>,
}

impl QueuedCache {
    pub(crate) fn new(cache: KvCache<Key>, queue: Option<Arc<WriteBehind>>) -> QueuedCache {
        QueuedCache { cache, queue }
    }
}

impl Deref for QueuedCache {
    type Target = KvCache<Key>;

    fn deref(&self) -> &KvCache<Key> {
        &self.cache
    }
}

/// Makes the queue that the options ask for, above `tier`.
pub(crate) fn queue(
    pool: &Pool,
    wanted: &kvmem_kv_cache_options,
    tier: Option<&SharedLowerTier>,
) -> Result<Option<Arc<WriteBehind>>, CallError> {
    check_reserved(wanted.reserved, "reserved")?;
    let when_full = match wanted.write_behind_when_full {
        KVMEM_WHEN_FULL_WAIT => WhenFull::Wait,
        KVMEM_WHEN_FULL_DROP => WhenFull::Drop,
        other => {
            return Err(CallError::invalid(format_args!(
                "write_behind_when_full is {other}: use KVMEM_WHEN_FULL_WAIT or \
                 KVMEM_WHEN_FULL_DROP"
            )));
        }
    };
    let on_drop = match wanted.write_behind_on_drop {
        KVMEM_ON_DROP_WRITE => OnDrop::Write,
        KVMEM_ON_DROP_DISCARD => OnDrop::Discard,
        other => {
            return Err(CallError::invalid(format_args!(
                "write_behind_on_drop is {other}: use KVMEM_ON_DROP_WRITE or KVMEM_ON_DROP_DISCARD"
            )));
        }
    };
    if !(1..=MAX_WRITERS).contains(&wanted.write_behind_writers) {
        return Err(CallError::invalid(format_args!(
            "write_behind_writers is {}: use 1 to {MAX_WRITERS}",
            wanted.write_behind_writers
        )));
    }
    let bytes = match wanted.write_behind_bytes {
        u64::MAX => return Ok(None),
        0 => {
            return Err(CallError::invalid(
                "write_behind_bytes is 0: use at least 1, or UINT64_MAX for no queue",
            ));
        }
        bytes => bytes,
    };
    let Some(tier) = tier else {
        return Err(CallError::invalid(format_args!(
            "write_behind_bytes is {bytes} without lower_tier: set both, or neither"
        )));
    };
    let queue = WriteBehind::builder(pool, Arc::clone(tier))
        .max_bytes(bytes)
        .when_full(when_full)
        .writers(size(u64::from(wanted.write_behind_writers)))
        .on_drop(on_drop)
        .build();
    queue.map(|queue| Some(Arc::new(queue))).map_err(|error| {
        CallError::new(
            KVMEM_ERR_SYSTEM,
            format_args!(
                "no thread can be started that writes evicted values: {error}; raise the limit of \
                 threads, or leave write_behind_bytes UINT64_MAX"
            ),
        )
    })
}

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
