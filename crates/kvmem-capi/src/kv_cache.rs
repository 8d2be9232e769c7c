//! *KvCache*: values under keys, in blocks of a pool.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use kvmem::pool::kv_cache::{Eviction, KvCache, Pinned, Reservation};

use crate::call::{destroy, guard, list, on, out, size, some_text, value_bytes};
use crate::fail::Fail;
use crate::key::kvmem_key;
use crate::options::{self, Options};
use crate::pool::kvmem_pool;
use crate::status::*;
use crate::table::{Object, object};
use crate::taker::{Taker, kvmem_kv_evict_fn};

/// Bytes of any kind, a token hash or a text.
pub(crate) type Key = Box<[u8]>;

/// The most bytes that a key can have: a longer one is KVMEM_INVALID_ARGUMENT. A longer prefix goes
/// by its hash.
pub const KVMEM_MAX_KEY_BYTES: u64 = 1 << 20;

/// A key that is looked for.
///
/// # Safety
/// The caller's promise, as to the bytes.
pub(crate) unsafe fn key_at<'a>(key: *const c_void, key_bytes: u64) -> Result<&'a [u8], Fail> {
    if key_bytes > KVMEM_MAX_KEY_BYTES {
        return Err(Fail::invalid(format_args!(
            "a key of {key_bytes} bytes: it can have at most {KVMEM_MAX_KEY_BYTES}; use a hash of what is longer"
        )));
    }
    // SAFETY: the caller's promise.
    unsafe { list(key.cast::<u8>(), key_bytes, "key") }
}

/// A copy of a key, to be kept.
pub(crate) fn kept(key: &[u8]) -> Result<Key, Fail> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(key.len()).map_err(|_| {
        Fail::said(
            KVMEM_NO_MEMORY,
            format_args!(
                "there is no memory for a copy of a key of {} bytes: free some, or use a hash",
                key.len()
            ),
        )
    })?;
    copy.extend_from_slice(key);
    Ok(copy.into())
}

/// Values under keys, in blocks of a pool: found by any thread, pinned while they are used, evicted
/// when room is needed. A key is any bytes. Owned by the caller: kvmem_kv_destroy. Pins,
/// reservations and leases outlive it, and it outlives its pool's handle. Any thread, several at
/// once.
///
/// In a forked child every call on a cache, pin, reservation or lease of the parent returns
/// KVMEM_FORKED, except the calls that destroy. No call waits for a lock that a thread of the
/// parent held.
pub struct kvmem_kv_cache {
    _opaque: [u8; 0],
}

/// A pin on a value: it is neither evicted nor freed while this exists. Owned by the caller:
/// kvmem_kv_pin_release. Any thread.
pub struct kvmem_kv_pin {
    _opaque: [u8; 0],
}

/// Room for a value that is being written. Owned by the caller: kvmem_kv_commit,
/// kvmem_kv_commit_leased or kvmem_kv_abandon. Any thread, one at a time.
pub struct kvmem_kv_reservation {
    _opaque: [u8; 0],
}

object!(kvmem_kv_cache, KvCache<Key>, Cache);
object!(kvmem_kv_pin, Pinned<Key>, Pin);
object!(kvmem_kv_reservation, Reservation<Key>, Reservation);

/// Eviction: what was least recently used goes first; the default.
pub const KVMEM_EVICT_LRU: u32 = 0;
/// Eviction: blocks must be used again soon after they have come, or they go.
pub const KVMEM_EVICT_SCAN_RESISTANT: u32 = 1;

/// How a cache is to be. Fill it with kvmem_kv_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_options {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// At most so many bytes are held; UINT64_MAX (the default): as many as find room in the pool.
    pub max_bytes: u64,
    /// At most so many values are held; UINT64_MAX (the default): about 2^32.
    pub max_blocks: u64,
    /// An insertion that leaves more bytes than `high_watermark_bytes` evicts down to these. Both
    /// UINT64_MAX (the default): no watermarks.
    pub low_watermark_bytes: u64,
    /// See there.
    pub high_watermark_bytes: u64,
    /// KVMEM_EVICT_LRU (the default) or KVMEM_EVICT_SCAN_RESISTANT.
    pub eviction: u32,
    /// Into how many shards keys are divided; 1 makes LRU exact; 0 (the default): some for each
    /// processor.
    pub shards: u32,
    /// Is given each value that is evicted, and `on_evict_user`: a lower tier; NULL (the default):
    /// nobody is, and its bytes are free at once.
    pub on_evict: kvmem_kv_evict_fn,
    /// Given to it.
    pub on_evict_user: *mut c_void,
    /// Is called once with `on_evict_user`, by any thread, when the cache is gone with all its
    /// leases and reservations; may be NULL. Not if the cache could not be made.
    pub on_evict_release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: numbers and addresses, of 8 bytes or in pairs of 4; the first is the size.
unsafe impl Options for kvmem_kv_options {
    fn defaults() -> Self {
        kvmem_kv_options {
            struct_size: size_of::<Self>() as u64,
            max_bytes: u64::MAX,
            max_blocks: u64::MAX,
            low_watermark_bytes: u64::MAX,
            high_watermark_bytes: u64::MAX,
            eviction: KVMEM_EVICT_LRU,
            shards: 0,
            on_evict: None,
            on_evict_user: std::ptr::null_mut(),
            on_evict_release: None,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_options_init(
    options: *mut kvmem_kv_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// Makes a cache on a pool, which may have other users too. `options` may be NULL. It holds nothing
/// yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_create(
    pool: *const kvmem_pool,
    options: *const kvmem_kv_options,
    out_cache: *mut *mut kvmem_kv_cache,
) -> kvmem_status {
    guard(|| {
        let made = out(out_cache, "out_cache")?;
        let mut builder = KvCache::<Key>::builder(kvmem_pool::table().get(pool)?);
        // SAFETY: the caller's promise.
        let wanted = unsafe { options::read(options) }?;
        builder = match wanted.eviction {
            KVMEM_EVICT_LRU => builder.eviction(Eviction::Lru),
            KVMEM_EVICT_SCAN_RESISTANT => builder.eviction(Eviction::ScanResistant),
            other => {
                return Err(Fail::invalid(format_args!(
                    "eviction {other}: say KVMEM_EVICT_LRU or KVMEM_EVICT_SCAN_RESISTANT"
                )));
            }
        };
        if wanted.max_bytes != u64::MAX {
            builder = builder.max_bytes(wanted.max_bytes);
        }
        if wanted.max_blocks != u64::MAX {
            builder = builder.max_blocks(wanted.max_blocks);
        }
        if (wanted.low_watermark_bytes, wanted.high_watermark_bytes) != (u64::MAX, u64::MAX) {
            builder = builder.watermarks(wanted.low_watermark_bytes, wanted.high_watermark_bytes);
        }
        if wanted.shards != 0 {
            builder = builder.shards(wanted.shards as usize);
        }
        let taker = Taker::new(wanted.on_evict, wanted.on_evict_user, wanted.on_evict_release)
            .map(Arc::new);
        match (&taker, wanted.on_evict_release) {
            (Some(taker), _) => {
                let taker = Arc::clone(taker);
                builder = builder.on_evict(move |pinned| taker.give(pinned));
            }
            (None, Some(_)) => {
                return Err(Fail::invalid(
                    "on_evict_release without on_evict: say both, or neither",
                ));
            }
            (None, None) => {}
        }
        let cache = kvmem_kv_cache::table().insert(builder.build()?)?;
        if let Some(taker) = taker {
            taker.own();
        }
        made.put(cache);
        Ok(())
    })
}

/// A value, pinned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_value {
    /// The pin: the bytes are good until it is released.
    pub pin: *mut kvmem_kv_pin,
    /// The bytes, to be read. The first is at any address, aligned to nothing.
    pub data: *const c_void,
    /// How many.
    pub bytes: u64,
    /// Where they begin in the pool.
    pub offset: u64,
}

/// None.
pub(crate) fn no_value() -> kvmem_kv_value {
    kvmem_kv_value { pin: std::ptr::null_mut(), data: std::ptr::null(), bytes: 0, offset: 0 }
}

pub(crate) fn value(pinned: Pinned<Key>) -> Result<kvmem_kv_value, Fail> {
    let block = pinned.block();
    let (data, bytes, offset) = (block.as_ptr().cast(), block.len() as u64, block.offset());
    Ok(kvmem_kv_value { pin: kvmem_kv_pin::table().insert(pinned)?, data, bytes, offset })
}

/// The value under a key, pinned; it counts as used. KVMEM_NOT_FOUND if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_get(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    out_value: *mut kvmem_kv_value,
) -> kvmem_status {
    on(cache, |cache| {
        let found = out(out_value, "out_value")?;
        // SAFETY: the caller's promise.
        let key = unsafe { key_at(key, key_bytes) }?;
        found.put(value(cache.get(key).ok_or(Fail::NotFound)?)?);
        Ok(())
    })
}

/// Whether there is a value under a key: 1 or 0. It does not count as used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_contains(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    out_contains: *mut u32,
) -> kvmem_status {
    on(cache, |cache| {
        let found = out(out_contains, "out_contains")?;
        // SAFETY: the caller's promise.
        let key = unsafe { key_at(key, key_bytes) }?;
        found.put(u32::from(cache.contains(key)));
        Ok(())
    })
}

/// Copies `bytes` bytes at `data` into a block and puts it under a key, in the place of what is
/// there. Evicts until it fits. KVMEM_NOTHING_TO_EVICT, KVMEM_TOO_LARGE or KVMEM_ZERO_SIZE if it
/// cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_insert(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    data: *const c_void,
    bytes: u64,
) -> kvmem_status {
    on(cache, |cache| {
        // SAFETY: the caller's promise.
        let (key, value) = unsafe { (key_at(key, key_bytes)?, value_bytes(data, bytes)?) };
        Ok(cache.insert(kept(key)?, value)?)
    })
}

/// Room for a value, to be written in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_room {
    /// The reservation: the bytes are the caller's until it is committed or abandoned.
    pub reservation: *mut kvmem_kv_reservation,
    /// The bytes, to be written.
    pub data: *mut c_void,
    /// How many.
    pub bytes: u64,
    /// Where they begin in the pool.
    pub offset: u64,
}

/// Makes room for a value of `bytes` bytes, to be written in place, by the processor or a device,
/// and then committed. As kvmem_kv_insert otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_reserve(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    bytes: u64,
    out_room: *mut kvmem_kv_room,
) -> kvmem_status {
    on(cache, |cache| {
        let room = out(out_room, "out_room")?;
        // SAFETY: the caller's promise.
        let key = unsafe { key_at(key, key_bytes) }?;
        let reservation = cache.reserve(kept(key)?, size(bytes))?;
        let block = reservation.block();
        let (data, offset) = (block.as_ptr().cast_mut().cast(), block.offset());
        let reservation = kvmem_kv_reservation::table().insert(reservation)?;
        room.put(kvmem_kv_room { reservation, data, bytes, offset });
        Ok(())
    })
}

/// Puts a value in. The reservation is gone afterwards. `out_value` (may be NULL) is the value,
/// pinned. KVMEM_FORKED in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_commit(
    reservation: *mut kvmem_kv_reservation,
    out_value: *mut kvmem_kv_value,
) -> kvmem_status {
    guard(|| {
        let pinned = kvmem_kv_reservation::table().take(reservation)?.commit();
        if let Ok(found) = out(out_value, "") {
            found.put(value(pinned)?);
        }
        Ok(())
    })
}

/// Says that `depth` blocks of the prefix come before the value; 0 is the default. Blocks at the
/// end of a prefix are evicted before those at its start, in whatever order they are committed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_reservation_set_depth(
    reservation: *mut kvmem_kv_reservation,
    depth: u32,
) -> kvmem_status {
    guard(|| {
        kvmem_kv_reservation::table().exclusive(reservation, |reservation| {
            reservation.set_depth(depth);
            Ok(())
        })
    })
}

/// Gives the room back. The reservation is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_abandon(reservation: *mut kvmem_kv_reservation) -> kvmem_status {
    destroy(reservation)
}

/// The key that a value will be put in under: `out_key_bytes` bytes at `out_key`, good as long as
/// the reservation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_reservation_cache_key(
    reservation: *const kvmem_kv_reservation,
    out_key: *mut *const c_void,
    out_key_bytes: *mut u64,
) -> kvmem_status {
    on(reservation, |reservation| put_key(reservation.key(), out_key, out_key_bytes))
}

fn put_key(key: &Key, out_key: *mut *const c_void, out_key_bytes: *mut u64) -> Result<(), Fail> {
    let (at, bytes) = (out(out_key, "out_key")?, out(out_key_bytes, "out_key_bytes")?);
    at.put(key.as_ptr().cast());
    bytes.put(key.len() as u64);
    Ok(())
}

/// The key with which `device` can write a reserved value. It is good as long as the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_reservation_key(
    reservation: *const kvmem_kv_reservation,
    device: *const c_char,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    on(reservation, |reservation| {
        let found = out(out_key, "out_key")?;
        // SAFETY: the caller's promise.
        found.put(reservation.block().key(unsafe { some_text(device, "device") }?)?.into());
        Ok(())
    })
}

/// One pin more on the same value. It is released by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_pin_clone(
    pin: *const kvmem_kv_pin,
    out_value: *mut kvmem_kv_value,
) -> kvmem_status {
    on(pin, |pin| {
        let cloned = out(out_value, "out_value")?;
        cloned.put(value(pin.clone())?);
        Ok(())
    })
}

/// The key that a pinned value was put in under: `out_key_bytes` bytes at `out_key`, good until the
/// pin is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_pin_cache_key(
    pin: *const kvmem_kv_pin,
    out_key: *mut *const c_void,
    out_key_bytes: *mut u64,
) -> kvmem_status {
    on(pin, |pin| put_key(pin.key(), out_key, out_key_bytes))
}

/// Whether the key of a pinned value has been given another since, or was removed or cleared: 1 or
/// 0. Being evicted does not count: what was evicted is the latest there was. In a
/// kvmem_kv_evict_fn it is answered rightly until that returns; later changes are not told to what
/// was evicted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_pin_is_superseded(
    pin: *const kvmem_kv_pin,
    out_superseded: *mut u32,
) -> kvmem_status {
    on(pin, |pin| {
        out(out_superseded, "out_superseded")?.put(u32::from(pin.is_superseded()));
        Ok(())
    })
}

/// The key with which `device` can reach a pinned value. It is good as long as the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_pin_key(
    pin: *const kvmem_kv_pin,
    device: *const c_char,
    out_key: *mut kvmem_key,
) -> kvmem_status {
    on(pin, |pin| {
        let found = out(out_key, "out_key")?;
        // SAFETY: the caller's promise.
        found.put(pin.block().key(unsafe { some_text(device, "device") }?)?.into());
        Ok(())
    })
}

/// Releases a pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_pin_release(pin: *mut kvmem_kv_pin) -> kvmem_status {
    destroy(pin)
}

/// Takes the value under a key out: its bytes are free when the last pin on it is released.
/// KVMEM_NOT_FOUND if there is none. A lower tier is told by kvmem_kv_remove_with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_remove(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
) -> kvmem_status {
    on(cache, |cache| {
        // SAFETY: the caller's promise.
        let key = unsafe { key_at(key, key_bytes) }?;
        cache.remove(key).map(drop).ok_or(Fail::NotFound)
    })
}

/// Takes every value out. Pins stay good. A lower tier is told by kvmem_kv_clear_with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_clear(cache: *const kvmem_kv_cache) -> kvmem_status {
    on(cache, |cache| {
        cache.clear();
        Ok(())
    })
}

/// Evicts until at most `bytes` bytes are held, or nothing is left that can go. `out_held_bytes`
/// (may be NULL) is how many are held then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_evict_to(
    cache: *const kvmem_kv_cache,
    bytes: u64,
    out_held_bytes: *mut u64,
) -> kvmem_status {
    on(cache, |cache| {
        let left = cache.evict_to(bytes);
        if let Ok(held) = out(out_held_bytes, "") {
            held.put(left);
        }
        Ok(())
    })
}

/// What a cache holds, and what it has done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_kv_stats {
    /// Values held, those being written included.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Calls of kvmem_kv_get that found their key.
    pub hits: u64,
    /// Calls of kvmem_kv_get that did not.
    pub misses: u64,
    /// Values put in.
    pub insertions: u64,
    /// Of those, values that took the place of another.
    pub replacements: u64,
    /// Values evicted.
    pub evictions: u64,
    /// Values removed by their key.
    pub removals: u64,
    /// Values refused because there was nothing to evict.
    pub insertion_failures: u64,
    /// Evicted values that `on_evict` failed to take.
    pub sink_failures: u64,
    /// Values fetched and not put in, because their lease was broken.
    pub superseded: u64,
}

/// Figures of a cache. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_get_stats(
    cache: *const kvmem_kv_cache,
    out_stats: *mut kvmem_kv_stats,
) -> kvmem_status {
    on(cache, |cache| {
        let figures = out(out_stats, "out_stats")?;
        let stats = cache.stats();
        figures.put(kvmem_kv_stats {
            blocks: stats.blocks,
            bytes: stats.bytes,
            hits: stats.hits,
            misses: stats.misses,
            insertions: stats.insertions,
            replacements: stats.replacements,
            evictions: stats.evictions,
            removals: stats.removals,
            insertion_failures: stats.insertion_failures,
            sink_failures: stats.sink_failures,
            superseded: stats.superseded,
        });
        Ok(())
    })
}

/// Verifies the invariants, while no other thread is in the cache. O(values). KVMEM_CHECK_FAILED is
/// a defect of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_check(cache: *const kvmem_kv_cache) -> kvmem_status {
    on(cache, |cache| Ok(cache.check()?))
}

/// Destroys a cache. Values that are pinned stay until their pins are released. What is held is
/// dropped, not evicted: `on_evict` is given none of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_destroy(cache: *mut kvmem_kv_cache) -> kvmem_status {
    destroy(cache)
}
