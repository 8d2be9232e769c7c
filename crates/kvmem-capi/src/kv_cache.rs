//! *KV cache*: values under keys, stored in blocks of a pool.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use kvmem::cache::{Eviction, KvCache, Reservation};
use kvmem::pool::Pool;
use kvmem::tier::{OnDrop, Tier, WhenFull, WriteBehind};

use crate::call::{destroy, guard, list, on, out, read, size, some_text, value_bytes};
use crate::error::CallError;
use crate::evict_callback::{EvictCallback, kvmem_kv_cache_evict_fn};
use crate::hints::kvmem_value_hints;
use crate::key::kvmem_key;
use crate::lower_tier::kvmem_lower_tier;
use crate::options::{self, Options};
use crate::pool::kvmem_pool;
use crate::promise::ObjectPromise;
use crate::stats::kvmem_kv_cache_stats;
use crate::status::*;
use crate::table::{Object, object};

pub(crate) use crate::kv_value::{
    Key, copy_key, key_at, kvmem_kv_cache_key, kvmem_kv_cache_pin, kvmem_kv_cache_value, no_value,
    value,
};
use crate::lower_tier::SharedLowerTier;
use crate::queued_cache::{
    KVMEM_ON_DROP_DISCARD, KVMEM_ON_DROP_WRITE, KVMEM_WHEN_FULL_DROP, KVMEM_WHEN_FULL_WAIT,
    QueuedCache,
};

/// Values under keys, stored in blocks of a pool. Any thread can look up a value. A value is pinned
/// while it is used, and evicted when the cache needs space. A key is any bytes. Owned by the
/// caller: kvmem_kv_cache_destroy. Pins and reservations may outlive the cache, and the cache
/// may outlive its pool's handle. Any thread, several at once.
///
/// In a forked child, every call on a cache, pin or reservation of the parent returns
/// KVMEM_ERR_FORKED, except the calls that destroy or release it. No call waits for a lock that a
/// thread of the parent held.
pub struct kvmem_kv_cache {
    _opaque: [u8; 0],
}

/// A block for a value that is being written. Owned by the caller:
/// kvmem_kv_cache_reservation_commit or kvmem_kv_cache_reservation_release. Any thread, one at a
/// time.
pub struct kvmem_kv_cache_reservation {
    _opaque: [u8; 0],
}

object!(kvmem_kv_cache, QueuedCache, Cache);
object!(kvmem_kv_cache_reservation, Reservation<Key>, Reservation);

/// Eviction: the least recently used value goes first. The default.
pub const KVMEM_EVICT_LRU: u32 = 0;
/// Eviction: a value that is not used again soon after its insertion goes first.
pub const KVMEM_EVICT_SCAN_RESISTANT: u32 = 1;

/// Options of a cache. Fill them in with kvmem_kv_cache_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_options {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// Limits the bytes of all values. UINT64_MAX (the default): the pool is the limit.
    pub max_bytes: u64,
    /// Limits the number of values. UINT64_MAX (the default): about 2^32.
    pub max_blocks: u64,
    /// Receives each evicted value. NULL (the default): evicted bytes are freed at once.
    pub on_evict: kvmem_kv_cache_evict_fn,
    /// Passed to `on_evict` and `on_evict_release`.
    pub on_evict_user: *mut c_void,
    /// Called once with `on_evict_user`, by any thread, when the cache and all its
    /// reservations are gone; may be NULL. Not called if the cache could not be made.
    pub on_evict_release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// A lower tier that receives each evicted value, and that kvmem_kv_cache_get asks for values
    /// that the cache does not have; see kvmem_disk_tier_as_lower_tier and kvmem_lower_tier_custom.
    /// NULL (the default): none. Not with `on_evict`. The cache keeps the tier: its handle may be
    /// destroyed before the cache.
    pub lower_tier: *const kvmem_lower_tier,
    /// Puts a queue of as many bytes above the lower tier. An insertion that evicts leaves the
    /// value there, where it is still found, and a thread writes many of them at once. They stay in
    /// use in the pool meanwhile. Destroying the cache writes what is left. UINT64_MAX (the
    /// default): no queue; the thread that evicts a value writes it.
    pub write_behind_bytes: u64,
    /// What happens to an evicted value when the queue is full: KVMEM_WHEN_FULL_WAIT (the default)
    /// or KVMEM_WHEN_FULL_DROP.
    pub write_behind_when_full: u32,
    /// Number of threads that write the values of the queue, from 1 (the default) to 64.
    pub write_behind_writers: u32,
    /// What happens to the values in the queue when the cache and all its reservations and fetches
    /// are gone: KVMEM_ON_DROP_WRITE (the default) or KVMEM_ON_DROP_DISCARD.
    pub write_behind_on_drop: u32,
    /// KVMEM_EVICT_LRU (the default) or KVMEM_EVICT_SCAN_RESISTANT.
    pub eviction: u32,
}

// SAFETY: `Options` requires a `u64` size first, no padding, and that all bits are valid: the
// members are numbers, raw pointers and optional functions, of 8 bytes or in pairs of 4.
unsafe impl Options for kvmem_kv_cache_options {
    fn defaults() -> Self {
        kvmem_kv_cache_options {
            struct_size: size_of::<Self>() as u64,
            max_bytes: u64::MAX,
            max_blocks: u64::MAX,
            on_evict: None,
            on_evict_user: std::ptr::null_mut(),
            on_evict_release: None,
            lower_tier: std::ptr::null(),
            write_behind_bytes: u64::MAX,
            write_behind_when_full: KVMEM_WHEN_FULL_WAIT,
            write_behind_writers: 1,
            write_behind_on_drop: KVMEM_ON_DROP_WRITE,
            eviction: KVMEM_EVICT_LRU,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_options_init(
    options: *mut kvmem_kv_cache_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: promise 1 of the C caller, for `options`.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// Makes an empty cache on a pool. The pool may have other users. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_create(
    pool: *const kvmem_pool,
    options: *const kvmem_kv_cache_options,
    out_cache: *mut *mut kvmem_kv_cache,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_cache`.
        let made = unsafe { out(out_cache, "out_cache") }?;
        let memory = kvmem_pool::table().get(&promise, pool)?;
        let mut builder = KvCache::<Key>::builder(memory);
        // SAFETY: promise 1 of the C caller, for `options`.
        let wanted = unsafe { options::read(options) }?;
        builder = match wanted.eviction {
            KVMEM_EVICT_LRU => builder.eviction(Eviction::Lru),
            KVMEM_EVICT_SCAN_RESISTANT => builder.eviction(Eviction::ScanResistant),
            other => {
                return Err(CallError::invalid(format_args!(
                    "eviction is {other}: use KVMEM_EVICT_LRU or KVMEM_EVICT_SCAN_RESISTANT"
                )));
            }
        };
        if wanted.max_bytes != u64::MAX {
            builder = builder.max_bytes(wanted.max_bytes);
        }
        if wanted.max_blocks != u64::MAX {
            builder = builder.max_blocks(wanted.max_blocks);
        }
        let evict_callback =
            EvictCallback::new(wanted.on_evict, wanted.on_evict_user, wanted.on_evict_release)
                .map(Arc::new);
        match (&evict_callback, wanted.on_evict_release) {
            (Some(callback), _) => {
                let callback = Arc::clone(callback);
                builder = builder.on_evict(move |pinned| callback.call(pinned));
            }
            (None, Some(_)) => {
                return Err(CallError::invalid(
                    "on_evict_release is set without on_evict: set both, or neither",
                ));
            }
            (None, None) => {}
        }
        let tier = if wanted.lower_tier.is_null() {
            None
        } else {
            Some(kvmem_lower_tier::table().get(&promise, wanted.lower_tier)?)
        };
        let queue = queue(memory, &wanted, tier)?;
        let below: Option<Arc<dyn Tier>> = match &queue {
            Some(queue) => Some(Arc::clone(queue) as _),
            None => tier.map(Arc::clone),
        };
        if let Some(below) = below {
            builder = builder.lower_tier(below).with_allocator(kvmem_tier::allocate);
        }
        let cache = QueuedCache::new(builder.build()?, queue);
        let cache = kvmem_kv_cache::table().insert(cache)?;
        if let Some(callback) = evict_callback {
            callback.own_user_data();
        }
        made.put(cache);
        Ok(())
    })
}

/// Starts to fetch into the processor's caches what kvmem_kv_cache_get and kvmem_kv_cache_reserve
/// of `count` keys read first. The cache misses of calls that follow for these keys then overlap. A
/// hint: changes nothing, and does not count as a use. O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_prefetch(
    cache: *const kvmem_kv_cache,
    keys: *const kvmem_kv_cache_key,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `keys`.
        let keys = unsafe { list(keys, count, "keys") }?;
        // All keys are checked first: a call that fails has no effect.
        for key in keys {
            // SAFETY: promise 1 of the C caller, for the bytes of each key.
            unsafe { key_at(key.key, key.key_bytes) }?;
        }
        // SAFETY: as above.
        cache.prefetch(keys.iter().flat_map(|key| unsafe { key_at(key.key, key.key_bytes) }));
        Ok(())
    })
}

/// Copies `bytes` bytes at `data` into a block and puts it under a key, replacing the key's value.
/// Evicts values until the new one fits. `hints` may be NULL; the lower tier gets them with the
/// value. Fails with KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_TOO_LARGE or KVMEM_ERR_ZERO_SIZE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_insert(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    data: *const c_void,
    bytes: u64,
    hints: *const kvmem_value_hints,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `key`.
        let (key, value) = unsafe { (key_at(key, key_bytes)?, value_bytes(data, bytes)?) };
        if hints.is_null() {
            return Ok(cache.insert(copy_key(key)?, value)?);
        }
        // SAFETY: promise 1 of the C caller, for `hints`.
        let hints = unsafe { read(hints, "hints") }?.read()?;
        Ok(cache.insert_with(copy_key(key)?, value, hints)?)
    })
}

/// A value to insert, with its key and its hints.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_new_value {
    /// The bytes of the key; may be NULL if there are none.
    pub key: *const c_void,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The bytes of the value.
    pub data: *const c_void,
    /// Number of bytes of the value.
    pub bytes: u64,
    /// Its hints; all 0: none.
    pub hints: kvmem_value_hints,
}

/// Inserts `count` values as kvmem_kv_cache_insert does, all of them or none. Blocks for all of
/// them are reserved before the first value is put under its key. If the call fails, other values
/// may have been evicted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_insert_batch(
    cache: *const kvmem_kv_cache,
    values: *const kvmem_kv_cache_new_value,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        let new_value = |one: &kvmem_kv_cache_new_value| {
            // SAFETY: promise 1 of the C caller, for the key and the bytes of each value.
            let (key, value) =
                unsafe { (key_at(one.key, one.key_bytes)?, value_bytes(one.data, one.bytes)?) };
            Ok((copy_key(key)?, value, one.hints.read()?))
        };
        // SAFETY: promise 1 of the C caller, for `values`.
        let values = unsafe { list(values, count, "values") }?.iter().map(new_value);
        Ok(cache.insert_batch(values.collect::<Result<Vec<_>, CallError>>()?)?)
    })
}

/// A block for a value that is written in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_reserved {
    /// The reservation. The bytes belong to the caller until it is committed or released.
    pub reservation: *mut kvmem_kv_cache_reservation,
    /// The bytes, for writing.
    pub data: *mut c_void,
    /// Number of bytes.
    pub bytes: u64,
    /// Offset of the first byte in the pool.
    pub offset: u64,
}

/// Reserves a block of `bytes` bytes for a value under a key. The processor or a device writes the
/// value in place; kvmem_kv_cache_reservation_commit puts it under the key. Evicts values until the
/// block fits. Fails with KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_TOO_LARGE or KVMEM_ERR_ZERO_SIZE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reserve(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    bytes: u64,
    out_reserved: *mut kvmem_kv_cache_reserved,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `out_reserved`.
        let place = unsafe { out(out_reserved, "out_reserved") }?;
        // SAFETY: promise 1 of the C caller, for `key`.
        let key = unsafe { key_at(key, key_bytes) }?;
        let reservation = cache.reserve(copy_key(key)?, size(bytes))?;
        let block = reservation.block();
        let (data, offset) = (block.as_ptr().cast_mut().cast(), block.offset());
        let reservation = kvmem_kv_cache_reservation::table().insert(reservation)?;
        place.put(kvmem_kv_cache_reserved { reservation, data, bytes, offset });
        Ok(())
    })
}

/// Puts the reserved value under its key and consumes the reservation. `out_value` (may be NULL)
/// receives the value, pinned. Returns KVMEM_ERR_FORKED in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_commit(
    reservation: *mut kvmem_kv_cache_reservation,
    out_value: *mut kvmem_kv_cache_value,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let pinned = kvmem_kv_cache_reservation::table().take(&mut promise, reservation)?.commit();
        // SAFETY: promise 1 of the C caller, for `out_value`.
        if let Ok(found) = unsafe { out(out_value, "") } {
            found.put(value(pinned)?);
        }
        Ok(())
    })
}

/// Sets the hints of the value; the default is none. Its time to live begins now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_set_hints(
    reservation: *mut kvmem_kv_cache_reservation,
    hints: *const kvmem_value_hints,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        kvmem_kv_cache_reservation::table().exclusive(&mut promise, reservation, |reservation| {
            // SAFETY: promise 1 of the C caller, for `hints`.
            reservation.set_hints(unsafe { read(hints, "hints") }?.read()?);
            Ok(())
        })
    })
}

/// Frees the block. The reservation is invalid afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_release(
    reservation: *mut kvmem_kv_cache_reservation,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, reservation)
}

/// Returns the key that the value will be put under: `out_key_bytes` bytes at `out_key`, valid as
/// long as the reservation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_cache_key(
    reservation: *const kvmem_kv_cache_reservation,
    out_key: *mut *const c_void,
    out_key_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `out_key` and `out_key_bytes`.
    on(&promise, reservation, |reservation| unsafe {
        put_key(reservation.key(), out_key, out_key_bytes)
    })
}

/// # Safety
/// Promise 1 of the C caller for `out_key` and `out_key_bytes`.
unsafe fn put_key(
    key: &Key,
    out_key: *mut *const c_void,
    out_key_bytes: *mut u64,
) -> Result<(), CallError> {
    // SAFETY: promise 1 of the C caller for both pointers, which this function's caller has.
    let (at, bytes) = unsafe { (out(out_key, "out_key")?, out(out_key_bytes, "out_key_bytes")?) };
    at.put(key.as_ptr().cast());
    bytes.put(key.len() as u64);
    Ok(())
}

/// Returns the registration key with which `device` can write the reserved value. Valid as long as
/// the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_key(
    reservation: *const kvmem_kv_cache_reservation,
    device: *const c_char,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, reservation, |reservation| {
        // SAFETY: promise 1 of the C caller, for `out_key`.
        let found = unsafe { out(out_key, "out_key") }?;
        // SAFETY: promise 1 of the C caller, for `device`.
        found.put(reservation.block().key(unsafe { some_text(device, "device") }?)?.into());
        Ok(())
    })
}

/// Adds another pin on the same value. Each pin is released separately.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_clone(
    pin: *const kvmem_kv_cache_pin,
    out_value: *mut kvmem_kv_cache_value,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, pin, |pin| {
        // SAFETY: promise 1 of the C caller, for `out_value`.
        let cloned = unsafe { out(out_value, "out_value") }?;
        cloned.put(value(pin.clone())?);
        Ok(())
    })
}

/// Returns the key under which the pinned value was put: `out_key_bytes` bytes at `out_key`, valid
/// until the pin is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_cache_key(
    pin: *const kvmem_kv_cache_pin,
    out_key: *mut *const c_void,
    out_key_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `out_key` and `out_key_bytes`.
    on(&promise, pin, |pin| unsafe { put_key(pin.key(), out_key, out_key_bytes) })
}

/// Returns whether the key of a pinned value has been given another value since, or was removed or
/// cleared: 1 or 0. Eviction does not count: an evicted value was the key's latest. An evicted
/// value does not learn of later changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_is_superseded(
    pin: *const kvmem_kv_cache_pin,
    out_superseded: *mut u32,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, pin, |pin| {
        // SAFETY: promise 1 of the C caller, for `out_superseded`.
        let place = unsafe { out(out_superseded, "out_superseded") }?;
        place.put(u32::from(pin.is_superseded()));
        Ok(())
    })
}

/// Returns the registration key with which `device` can access the pinned value. Valid as long as
/// the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_key(
    pin: *const kvmem_kv_cache_pin,
    device: *const c_char,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, pin, |pin| {
        // SAFETY: promise 1 of the C caller, for `out_key`.
        let found = unsafe { out(out_key, "out_key") }?;
        // SAFETY: promise 1 of the C caller, for `device`.
        found.put(pin.block().key(unsafe { some_text(device, "device") }?)?.into());
        Ok(())
    })
}

/// Releases a pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_release(pin: *mut kvmem_kv_cache_pin) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, pin)
}

/// Evicts values until the cache holds at most `bytes` bytes, or no value can be evicted.
/// `out_held_bytes` (may be NULL) receives the number of bytes that remain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_evict_to(
    cache: *const kvmem_kv_cache,
    bytes: u64,
    out_held_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        let left = cache.evict_to(bytes);
        // SAFETY: promise 1 of the C caller, for `out_held_bytes`.
        if let Ok(held) = unsafe { out(out_held_bytes, "") } {
            held.put(left);
        }
        Ok(())
    })
}

/// Reads the statistics. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_stats(
    cache: *const kvmem_kv_cache,
    out_stats: *mut kvmem_kv_cache_stats,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| {
        // SAFETY: promise 1 of the C caller, for `out_stats`.
        let figures = unsafe { out(out_stats, "out_stats") }?;
        figures.put((&cache.stats()).into());
        Ok(())
    })
}

/// Checks the invariants. No other thread may be in a call on the cache. O(values).
/// KVMEM_ERR_CHECK_FAILED is a defect of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_check(cache: *const kvmem_kv_cache) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cache, |cache| Ok(cache.check()?))
}

/// Destroys a cache. Pinned values stay until their pins are released. The other values are
/// dropped, not evicted: `on_evict` does not receive them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_destroy(cache: *mut kvmem_kv_cache) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, cache)
}

/// The maximum of `write_behind_writers`.
const MAX_WRITERS: u32 = 64;

/// Makes the queue that the options ask for, above `tier`.
fn queue(
    pool: &Pool,
    wanted: &kvmem_kv_cache_options,
    tier: Option<&SharedLowerTier>,
) -> Result<Option<Arc<WriteBehind>>, CallError> {
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
