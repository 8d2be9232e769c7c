//! *KV cache*: values under keys, stored in blocks of a pool.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use kvmem::cache::{Eviction, KvCache, Reservation};
use kvmem::pool::Pool;
use kvmem::tier::{OnDrop, Tier, TierHints, WhenFull, WriteBehind};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{guard, size};
use crate::error::CallError;
use crate::evict_callback::{EvictCallback, kvmem_kv_cache_evict_fn};
use crate::hints::kvmem_value_hints;
use crate::key::kvmem_key;
use crate::kv_value::borrow_keys;
use crate::lower_tier::kvmem_lower_tier;
use crate::pool::kvmem_pool;
use crate::promise::ObjectPromise;
use crate::stats::kvmem_kv_cache_stats;
use crate::status::*;

pub(crate) use crate::kv_value::{
    Key, copy_key, kvmem_kv_cache_key, kvmem_kv_cache_pin, kvmem_kv_cache_value, no_value, value,
};
use crate::lower_tier::SharedLowerTier;
use crate::options::{self, choice, options};
use crate::queued_cache::{
    KVMEM_ON_DROP_DISCARD, KVMEM_ON_DROP_WRITE, KVMEM_WHEN_FULL_DROP, KVMEM_WHEN_FULL_WAIT,
    QueuedCache,
};
use crate::table::{Object, object};
use crate::user_data::UserData;

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

object!(kvmem_kv_cache, QueuedCache);
object!(kvmem_kv_cache_reservation, Reservation<Key>);

/// Eviction: the least recently used value goes first. The default.
pub const KVMEM_EVICT_LRU: u32 = 0;
/// Eviction: a value that is not used again soon after its insertion goes first.
pub const KVMEM_EVICT_SCAN_RESISTANT: u32 = 1;

options! {
    /// Options of a cache. Fill them in with kvmem_kv_cache_options_init first.
    kvmem_kv_cache_options: kvmem_kv_cache_options_init;

    /// Limits the bytes of all values. UINT64_MAX (the default): the pool is the limit.
    max_bytes: u64 = u64::MAX,
    /// Limits the number of values. UINT64_MAX (the default): about 2^32.
    max_blocks: u64 = u64::MAX,
    /// Receives each evicted value. NULL (the default): evicted bytes are freed at once.
    on_evict: kvmem_kv_cache_evict_fn = None,
    /// Passed to `on_evict` and `on_evict_release`.
    on_evict_user: *mut c_void = std::ptr::null_mut(),
    /// Called once with `on_evict_user`, by any thread, when the cache and all its
    /// reservations are gone; may be NULL. Not called if the cache could not be made.
    on_evict_release: Option<unsafe extern "C" fn(user: *mut c_void)> = None,
    /// A lower tier that receives each evicted value, and that kvmem_kv_cache_get asks for values
    /// that the cache does not have; see kvmem_disk_tier_as_lower_tier and kvmem_lower_tier_custom.
    /// NULL (the default): none. Not with `on_evict`. The cache keeps the tier: its handle may be
    /// destroyed before the cache.
    lower_tier: Handle<kvmem_lower_tier> = Handle::NULL,
    /// Puts a queue of as many bytes above the lower tier. An insertion that evicts leaves the
    /// value there, where it is still found, and a thread writes many of them at once. They stay in
    /// use in the pool meanwhile. Destroying the cache writes what is left. UINT64_MAX (the
    /// default): no queue; the thread that evicts a value writes it.
    write_behind_bytes: u64 = u64::MAX,
    /// What happens to an evicted value when the queue is full: KVMEM_WHEN_FULL_WAIT (the default)
    /// or KVMEM_WHEN_FULL_DROP.
    write_behind_when_full: u32 = KVMEM_WHEN_FULL_WAIT,
    /// Number of threads that write the values of the queue, from 1 (the default) to 64.
    write_behind_writers: u32 = 1,
    /// What happens to the values in the queue when the cache and all its reservations and fetches
    /// are gone: KVMEM_ON_DROP_WRITE (the default) or KVMEM_ON_DROP_DISCARD.
    write_behind_on_drop: u32 = KVMEM_ON_DROP_WRITE,
    /// KVMEM_EVICT_LRU (the default) or KVMEM_EVICT_SCAN_RESISTANT.
    eviction: u32 = KVMEM_EVICT_LRU,
}

/// Makes an empty cache on a pool. The pool may have other users. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_create(
    pool: Handle<kvmem_pool>,
    options: In<kvmem_kv_cache_options>,
    out_cache: Out<*mut kvmem_kv_cache>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_cache.get("out_cache")?;
        let memory = pool.get(&promise)?;
        let mut builder = KvCache::<Key>::builder(memory);
        let wanted = options::read(&options)?;
        builder = builder.eviction(choice!(wanted.eviction:
            KVMEM_EVICT_LRU => Eviction::Lru,
            KVMEM_EVICT_SCAN_RESISTANT => Eviction::ScanResistant,
        )?);
        if wanted.max_bytes != u64::MAX {
            builder = builder.max_bytes(wanted.max_bytes);
        }
        if wanted.max_blocks != u64::MAX {
            builder = builder.max_blocks(wanted.max_blocks);
        }
        let user_data = UserData::new(wanted.on_evict_user, wanted.on_evict_release);
        let evict_callback = EvictCallback::new(wanted.on_evict, user_data).map(Arc::new);
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
        let tier =
            if wanted.lower_tier.is_null() { None } else { Some(wanted.lower_tier.get(&promise)?) };
        let queue = queue(memory, &wanted, tier)?;
        let below: Option<Arc<dyn Tier>> = match &queue {
            Some(queue) => Some(Arc::clone(queue) as _),
            None => tier.map(Arc::clone),
        };
        if let Some(below) = below {
            builder = builder.lower_tier(below).with_allocator(kvmem_tier::allocate);
        }
        let cache = QueuedCache::new(builder.build()?, queue);
        made.insert(cache)?;
        evict_callback.inspect(|callback| callback.user_data.own());
        Ok(())
    })
}

/// Starts to fetch into the processor's caches what kvmem_kv_cache_get and kvmem_kv_cache_reserve
/// of `count` keys read first. The cache misses of calls that follow for these keys then overlap. A
/// hint: changes nothing, and does not count as a use. O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_prefetch(
    cache: Handle<kvmem_kv_cache>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
) -> kvmem_status {
    cache.on(|cache| {
        cache.prefetch(borrow_keys(&keys, count)?);
        Ok(())
    })
}

/// Copies `bytes` bytes at `data` into a block and puts it under a key, replacing the key's value.
/// Evicts values until the new one fits. `hints` may be NULL; the lower tier gets them with the
/// value. Fails with KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_TOO_LARGE or KVMEM_ERR_ZERO_SIZE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_insert(
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    data: In<c_void>,
    bytes: u64,
    hints: In<kvmem_value_hints>,
) -> kvmem_status {
    cache.on(|cache| {
        let (key, value) = (key.key(key_bytes)?, data.value(bytes)?);
        if hints.is_null() {
            return Ok(cache.insert(copy_key(key)?, value)?);
        }
        let hints = hints.get("hints")?.read()?;
        Ok(cache.insert_with(copy_key(key)?, value, hints)?)
    })
}

/// A value to insert, with its key and its hints.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_cache_new_value {
    /// The bytes of the key; may be NULL if there are none.
    pub key: In<c_void>,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The bytes of the value.
    pub data: In<c_void>,
    /// Number of bytes of the value.
    pub bytes: u64,
    /// Its hints; all 0: none.
    pub hints: kvmem_value_hints,
}

impl kvmem_kv_cache_new_value {
    fn read(&self) -> Result<(Key, &[u8], TierHints), CallError> {
        let key = copy_key(self.key.key(self.key_bytes)?)?;
        Ok((key, self.data.value(self.bytes)?, self.hints.read()?))
    }
}

/// Inserts `count` values as kvmem_kv_cache_insert does, all of them or none. Blocks for all of
/// them are reserved before the first value is put under its key. If the call fails, other values
/// may have been evicted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_insert_batch(
    cache: Handle<kvmem_kv_cache>,
    values: In<kvmem_kv_cache_new_value>,
    count: u64,
) -> kvmem_status {
    cache.on(|cache| {
        let values = values.list(count, "values")?.iter().map(kvmem_kv_cache_new_value::read);
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
    cache: Handle<kvmem_kv_cache>,
    key: In<c_void>,
    key_bytes: u64,
    bytes: u64,
    out_reserved: Out<kvmem_kv_cache_reserved>,
) -> kvmem_status {
    cache.on(|cache| {
        let place = out_reserved.get("out_reserved")?;
        let key = key.key(key_bytes)?;
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
    reservation: Owned<kvmem_kv_cache_reservation>,
    out_value: Out<kvmem_kv_cache_value>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let pinned = reservation.take(&mut promise)?.commit();
        if out_value.is_null() { Ok(()) } else { out_value.put("out_value", value(pinned)?) }
    })
}

/// Sets the hints of the value; the default is none. Its time to live begins now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_set_hints(
    reservation: Owned<kvmem_kv_cache_reservation>,
    hints: In<kvmem_value_hints>,
) -> kvmem_status {
    reservation.exclusive(|reservation| {
        reservation.set_hints(hints.get("hints")?.read()?);
        Ok(())
    })
}

/// Frees the block. The reservation is invalid afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_release(
    reservation: Owned<kvmem_kv_cache_reservation>,
) -> kvmem_status {
    reservation.destroy()
}

/// Returns the key that the value will be put under: `out_key_bytes` bytes at `out_key`, valid as
/// long as the reservation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_cache_key(
    reservation: Handle<kvmem_kv_cache_reservation>,
    out_key: Out<*const c_void>,
    out_key_bytes: Out<u64>,
) -> kvmem_status {
    reservation.on(|reservation| put_key(reservation.key(), &out_key, &out_key_bytes))
}

fn put_key(
    key: &Key,
    out_key: &Out<*const c_void>,
    out_key_bytes: &Out<u64>,
) -> Result<(), CallError> {
    let (at, bytes) = (out_key.get("out_key")?, out_key_bytes.get("out_key_bytes")?);
    at.put(key.as_ptr().cast());
    bytes.put(key.len() as u64);
    Ok(())
}

/// Returns the registration key with which `device` can write the reserved value. Valid as long as
/// the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_reservation_key(
    reservation: Handle<kvmem_kv_cache_reservation>,
    device: In<c_char>,
    out_key: Out<kvmem_key>,
) -> kvmem_status {
    reservation.on(|reservation| {
        let found = out_key.get("out_key")?;
        found.put(reservation.block().key(device.some_text("device")?)?.into());
        Ok(())
    })
}

/// Adds another pin on the same value. Each pin is released separately.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_clone(
    pin: Handle<kvmem_kv_cache_pin>,
    out_value: Out<kvmem_kv_cache_value>,
) -> kvmem_status {
    pin.on(|pin| {
        let cloned = out_value.get("out_value")?;
        cloned.put(value(pin.clone())?);
        Ok(())
    })
}

/// Returns the key under which the pinned value was put: `out_key_bytes` bytes at `out_key`, valid
/// until the pin is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_cache_key(
    pin: Handle<kvmem_kv_cache_pin>,
    out_key: Out<*const c_void>,
    out_key_bytes: Out<u64>,
) -> kvmem_status {
    pin.on(|pin| put_key(pin.key(), &out_key, &out_key_bytes))
}

/// Returns whether the key of a pinned value has been given another value since, or was removed or
/// cleared: 1 or 0. Eviction does not count: an evicted value was the key's latest. An evicted
/// value does not learn of later changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_is_superseded(
    pin: Handle<kvmem_kv_cache_pin>,
    out_superseded: Out<u32>,
) -> kvmem_status {
    pin.on(|pin| out_superseded.put("out_superseded", u32::from(pin.is_superseded())))
}

/// Returns the registration key with which `device` can access the pinned value. Valid as long as
/// the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_key(
    pin: Handle<kvmem_kv_cache_pin>,
    device: In<c_char>,
    out_key: Out<kvmem_key>,
) -> kvmem_status {
    pin.on(|pin| {
        let found = out_key.get("out_key")?;
        found.put(pin.block().key(device.some_text("device")?)?.into());
        Ok(())
    })
}

/// Releases a pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_pin_release(
    pin: Owned<kvmem_kv_cache_pin>,
) -> kvmem_status {
    pin.destroy()
}

/// Evicts values until the cache holds at most `bytes` bytes, or no value can be evicted.
/// `out_held_bytes` (may be NULL) receives the number of bytes that remain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_evict_to(
    cache: Handle<kvmem_kv_cache>,
    bytes: u64,
    out_held_bytes: Out<u64>,
) -> kvmem_status {
    cache.on(|cache| {
        let left = cache.evict_to(bytes);
        out_held_bytes.put_if_wanted(left);
        Ok(())
    })
}

/// Reads the statistics. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_get_stats(
    cache: Handle<kvmem_kv_cache>,
    out_stats: Out<kvmem_kv_cache_stats>,
) -> kvmem_status {
    cache.on(|cache| out_stats.put("out_stats", kvmem_kv_cache_stats::new(&cache.stats())))
}

/// Checks the invariants. No other thread may be in a call on the cache. O(values).
/// KVMEM_ERR_CHECK_FAILED is a defect of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_check(cache: Handle<kvmem_kv_cache>) -> kvmem_status {
    cache.on(|cache| Ok(cache.check()?))
}

/// Destroys a cache. Pinned values stay until their pins are released. The other values are
/// dropped, not evicted: `on_evict` does not receive them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_cache_destroy(cache: Owned<kvmem_kv_cache>) -> kvmem_status {
    cache.destroy()
}

/// The maximum of `write_behind_writers`.
const MAX_WRITERS: u32 = 64;

/// Makes the queue that the options ask for, above `tier`.
fn queue(
    pool: &Pool,
    wanted: &kvmem_kv_cache_options,
    tier: Option<&SharedLowerTier>,
) -> Result<Option<Arc<WriteBehind>>, CallError> {
    let when_full = choice!(wanted.write_behind_when_full:
        KVMEM_WHEN_FULL_WAIT => WhenFull::Wait,
        KVMEM_WHEN_FULL_DROP => WhenFull::Drop,
    )?;
    let on_drop = choice!(wanted.write_behind_on_drop:
        KVMEM_ON_DROP_WRITE => OnDrop::Write,
        KVMEM_ON_DROP_DISCARD => OnDrop::Discard,
    )?;
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
