//! *Disk tier*: values on a disk, found again after a restart.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use kvmem_tier::{Admission, DiskTier, DiskTierOptions, EvictionOrder, TierSet, Verify};

use crate::admit_callback::{AdmitCallback, AdmitPolicy, kvmem_disk_tier_admit_fn};
use crate::call::{destroy, guard, on, out, some_text};
use crate::error::CallError;
use crate::kv_value::kvmem_kv_cache_key;
use crate::options::{self, Options, flag};
use crate::pool::kvmem_pool;
use crate::promise::ObjectPromise;
use crate::stats::{kvmem_disk_tier_report, kvmem_disk_tier_stats};
use crate::status::*;
use crate::table::{Object, object};
use crate::tier_values::{self, kvmem_disk_tier_request, kvmem_disk_tier_value};

/// Values on a local disk, found again by their keys after a restart. A full tier evicts expired
/// values first, then those of the lowest priority, in the order of `eviction`. A damaged value is
/// a miss, and never the wrong bytes. Below a cache it receives what the cache evicts: see
/// kvmem_disk_tier_as_lower_tier. Owned by the caller:
/// kvmem_disk_tier_destroy. Any thread, several at once; a call blocks until the drive is done.
///
/// One process uses a file at a time. In a forked child, every call on a tier of the parent returns
/// KVMEM_ERR_FORKED, except kvmem_disk_tier_destroy.
pub struct kvmem_disk_tier {
    _opaque: [u8; 0],
}

object!(kvmem_disk_tier, Arc<TierSet>, DiskTier);

/// Verification when a tier is opened: none; each value is verified when it is fetched. The
/// default.
pub const KVMEM_VERIFY_LAZY: u32 = 0;
/// Verification when a tier is opened: all values are read, and damaged ones removed.
pub const KVMEM_VERIFY_ALL: u32 = 1;

/// Admission: every evicted value is written. The default.
pub const KVMEM_ADMIT_ALL: u32 = 0;
/// Admission: an evicted value is written if its key is evicted a second time.
pub const KVMEM_ADMIT_SECOND_EVICTION: u32 = 1;
/// Admission: an evicted value is written if `on_admit` says so.
pub const KVMEM_ADMIT_CUSTOM: u32 = 2;

/// Eviction from a full tier: values used least recently first. A fetch is a use. The default.
pub const KVMEM_TIER_EVICT_LRU: u32 = 0;
/// Eviction from a full tier: values stored first come first.
pub const KVMEM_TIER_EVICT_FIFO: u32 = 1;

/// The maximum of `depth` of a tier.
const MAX_DEPTH: u32 = 4096;

/// Options of a disk tier. Fill them in with kvmem_disk_tier_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_options {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// Length of the file. A new or shorter file becomes as long, with its space allocated.
    /// UINT64_MAX (the default): a file or block device keeps its length.
    pub bytes: u64,
    /// Maximum number of values, fixed when the file is made. The file keeps 260 bytes for each.
    /// UINT64_MAX (the default): one for each 32 KiB of the file.
    pub max_entries: u64,
    /// Bytes of each of the two journals, fixed when the file is made. UINT64_MAX (the default):
    /// those of a checkpoint of `max_entries` values, or 1/64 of the file up to 4 MiB if that is
    /// longer.
    pub journal_bytes: u64,
    /// Limits the bytes that are written per second, those of the index too: an evicted value that
    /// comes when they are used up is dropped. Values given to kvmem_disk_tier_store are always
    /// written, and count. UINT64_MAX (the default): no limit.
    pub max_write_bytes_per_s: u64,
    /// Maximum number of transfers that one call has in flight, from 1 to 4096. The default is 32.
    pub depth: u32,
    /// 1: makes a new tier of a file that holds something else or is damaged; everything in it is
    /// lost. The default is 0.
    pub format: u32,
    /// KVMEM_VERIFY_LAZY (the default) or KVMEM_VERIFY_ALL.
    pub verify: u32,
    /// Which values that a cache evicts are written: KVMEM_ADMIT_ALL (the default),
    /// KVMEM_ADMIT_SECOND_EVICTION or KVMEM_ADMIT_CUSTOM. Values given to kvmem_disk_tier_store are
    /// always written.
    pub admission: u32,
    /// Which values a full tier evicts first, of those with the same priority:
    /// KVMEM_TIER_EVICT_LRU (the default) or KVMEM_TIER_EVICT_FIFO. The file does not keep it.
    pub eviction: u32,
    /// 1: opens the file with O_DSYNC. A value survives a power cut as soon as it is stored,
    /// without kvmem_disk_tier_sync, and storing takes longer. The default is 0.
    pub dsync: u32,
    /// Chooses the evicted values that are written, with KVMEM_ADMIT_CUSTOM. NULL (the default)
    /// otherwise.
    pub on_admit: kvmem_disk_tier_admit_fn,
    /// Passed to `on_admit` and `on_admit_release`.
    pub on_admit_user: *mut c_void,
    /// Called once with `on_admit_user`, by any thread, when the tier, or each tier of a set, is
    /// gone; may be NULL. Not called if the tier could not be opened.
    pub on_admit_release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// 1: opens a tier that a process of another host had open, which has ended without closing it.
    /// The default is 0: such a tier is KVMEM_ERR_IN_USE. A process of this host that has ended
    /// needs no such word.
    pub take_over: u32,
    /// Always 0.
    pub reserved: u32,
}

// SAFETY: `Options` requires a `u64` size first, no padding, and that all bits are valid: the
// members are numbers, raw pointers and optional functions, of 8 bytes or in pairs of 4.
unsafe impl Options for kvmem_disk_tier_options {
    fn defaults() -> Self {
        kvmem_disk_tier_options {
            struct_size: size_of::<Self>() as u64,
            bytes: u64::MAX,
            max_entries: u64::MAX,
            journal_bytes: u64::MAX,
            max_write_bytes_per_s: u64::MAX,
            depth: 32,
            format: 0,
            verify: KVMEM_VERIFY_LAZY,
            admission: KVMEM_ADMIT_ALL,
            eviction: KVMEM_TIER_EVICT_LRU,
            dsync: 0,
            on_admit: None,
            on_admit_user: std::ptr::null_mut(),
            on_admit_release: None,
            take_over: 0,
            reserved: 0,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_options_init(
    options: *mut kvmem_disk_tier_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: promise 1 of the C caller, for `options`.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// Checks a number of transfers in flight.
pub(crate) fn depth_of(depth: u32) -> Result<u32, CallError> {
    if (1..=MAX_DEPTH).contains(&depth) {
        return Ok(depth);
    }
    Err(CallError::invalid(format_args!("depth is {depth}: use 1 to {MAX_DEPTH}")))
}

/// Options of the library, and the callback that they share.
pub(crate) struct ConvertedOptions {
    pub(crate) options: DiskTierOptions,
    pub(crate) admit: Option<Arc<AdmitCallback>>,
}

impl ConvertedOptions {
    /// Takes ownership of the user data of the callback: the tier exists.
    pub(crate) fn own_user_data(&self) {
        self.admit.as_ref().inspect(|admit| admit.own_user_data());
    }
}

/// Converts the options.
pub(crate) fn tier_options(
    wanted: &kvmem_disk_tier_options,
) -> Result<ConvertedOptions, CallError> {
    let &kvmem_disk_tier_options { on_admit, on_admit_user, on_admit_release, .. } = wanted;
    let admit = AdmitCallback::new(on_admit, on_admit_user, on_admit_release).map(Arc::new);
    let given = |number: u64, name: &str| match number {
        u64::MAX => Ok(None),
        0 => Err(CallError::invalid(format_args!(
            "{name} is 0: use at least 1, or UINT64_MAX for the default"
        ))),
        number => Ok(Some(number)),
    };
    options::check_reserved(wanted.reserved, "reserved")?;
    let options = DiskTierOptions {
        bytes: given(wanted.bytes, "bytes")?,
        depth: Some(depth_of(wanted.depth)?),
        max_entries: given(wanted.max_entries, "max_entries")?,
        journal_bytes: given(wanted.journal_bytes, "journal_bytes")?,
        dsync: flag(wanted.dsync, "dsync")?,
        format: flag(wanted.format, "format")?,
        verify: match wanted.verify {
            KVMEM_VERIFY_LAZY => Verify::Lazy,
            KVMEM_VERIFY_ALL => Verify::All,
            other => {
                return Err(CallError::invalid(format_args!(
                    "verify is {other}: use KVMEM_VERIFY_LAZY or KVMEM_VERIFY_ALL"
                )));
            }
        },
        admission: match (wanted.admission, &admit) {
            (KVMEM_ADMIT_ALL, None) => Admission::All,
            (KVMEM_ADMIT_SECOND_EVICTION, None) => Admission::SecondEviction,
            (KVMEM_ADMIT_CUSTOM, Some(admit)) => {
                Admission::Custom(Arc::new(AdmitPolicy(Arc::clone(admit))))
            }
            (KVMEM_ADMIT_CUSTOM, None) => {
                return Err(CallError::invalid(format_args!(
                    "admission is KVMEM_ADMIT_CUSTOM and on_admit is NULL: set a function"
                )));
            }
            (KVMEM_ADMIT_ALL | KVMEM_ADMIT_SECOND_EVICTION, Some(_)) => {
                return Err(CallError::invalid(format_args!(
                    "on_admit is set and admission is {}: use KVMEM_ADMIT_CUSTOM, or NULL",
                    wanted.admission
                )));
            }
            (other, _) => {
                return Err(CallError::invalid(format_args!(
                    "admission is {other}: use KVMEM_ADMIT_ALL, KVMEM_ADMIT_SECOND_EVICTION or \
                     KVMEM_ADMIT_CUSTOM"
                )));
            }
        },
        eviction: match wanted.eviction {
            KVMEM_TIER_EVICT_LRU => EvictionOrder::Lru,
            KVMEM_TIER_EVICT_FIFO => EvictionOrder::Fifo,
            other => {
                return Err(CallError::invalid(format_args!(
                    "eviction is {other}: use KVMEM_TIER_EVICT_LRU or KVMEM_TIER_EVICT_FIFO"
                )));
            }
        },
        max_write_bytes_per_s: given(wanted.max_write_bytes_per_s, "max_write_bytes_per_s")?,
        take_over: flag(wanted.take_over, "take_over")?,
    };
    Ok(ConvertedOptions { options, admit })
}

/// Opens the tier in the file or block device at `path`, and makes it if the file is new. `options`
/// may be NULL. `out_report` (may be NULL) receives what was found.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another
/// process has it open as one for three seconds or a process of another host may have,
/// KVMEM_ERR_INVALID_ARGUMENT if it is too short, and KVMEM_ERR_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_open(
    path: *const c_char,
    options: *const kvmem_disk_tier_options,
    out_tier: *mut *mut kvmem_disk_tier,
    out_report: *mut kvmem_disk_tier_report,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_tier`.
        let made = unsafe { out(out_tier, "out_tier") }?;
        // SAFETY: promise 1 of the C caller, for `path`.
        let path = unsafe { some_text(path, "path") }?;
        // SAFETY: promise 1 of the C caller, for `options`.
        let converted = tier_options(&unsafe { options::read(options) }?)?;
        let (tier, found) = DiskTier::open(path, &converted.options)?;
        let tier = TierSet::new(vec![tier])?;
        made.put(kvmem_disk_tier::table().insert(Arc::new(tier))?);
        converted.own_user_data();
        // SAFETY: promise 1 of the C caller, for `out_report`.
        if let Ok(place) = unsafe { out(out_report, "") } {
            place.put((&found).into());
        }
        Ok(())
    })
}

/// Stores `count` values under their keys, all of them together, and replaces the values that the
/// keys had. Of two values under one key the later one counts. `out_results` (may be NULL) receives
/// the status of each value.
///
/// A stored value is found again after the process was killed, and after a power cut once
/// kvmem_disk_tier_sync has returned. Values that begin at a multiple of 4096 bytes are written
/// from where they are; others are copied.
///
/// Returns the first failure: KVMEM_ERR_TOO_LARGE, KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_SYSTEM or
/// KVMEM_ERR_READ_ONLY. The other values are stored nevertheless. A key whose value was not stored
/// has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_store(
    tier: *const kvmem_disk_tier,
    values: *const kvmem_disk_tier_value,
    count: u64,
    out_results: *mut kvmem_status,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `values` and `out_results`.
    on(&promise, tier, |tier| unsafe { tier_values::store(tier, values, count, out_results) })
}

/// Fetches `count` values, all at once. Each element of `requests` names a key and memory, and
/// receives the result. The bytes of the memory mean something only after KVMEM_FETCHED_HIT. Two
/// elements must not share memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_fetch(
    tier: *const kvmem_disk_tier,
    requests: *mut kvmem_disk_tier_request,
    count: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `requests`.
    on(&promise, tier, |tier| unsafe { tier_values::fetch(tier, requests, count) })
}

/// Returns the length of a value in bytes. This does not count as a use. KVMEM_ERR_NOT_FOUND if the
/// key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_len_of(
    tier: *const kvmem_disk_tier,
    key: *const c_void,
    key_bytes: u64,
    out_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `key` and `out_bytes`.
    on(&promise, tier, |tier| unsafe { tier_values::len_of(tier, key, key_bytes, out_bytes) })
}

/// Removes the values of `count` keys. `out_removed` (may be NULL) receives how many there were.
/// The values do not come back after the process was killed; after a power cut they do unless
/// kvmem_disk_tier_sync has returned since.
///
/// KVMEM_ERR_SYSTEM or KVMEM_ERR_READ_ONLY: the values are not found in this process, but may be
/// after a restart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_remove(
    tier: *const kvmem_disk_tier,
    keys: *const kvmem_kv_cache_key,
    count: u64,
    out_removed: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `keys` and `out_removed`.
    on(&promise, tier, |tier| unsafe { tier_values::remove(tier, keys, count, out_removed) })
}

/// Removes all values, durably. Fails as kvmem_disk_tier_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_clear(tier: *const kvmem_disk_tier) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| Ok(tier.clear()?))
}

/// Makes all that was stored and removed before durable: a power cut does not undo it. After
/// KVMEM_ERR_SYSTEM the tier stores nothing until it can begin its journal anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_sync(tier: *const kvmem_disk_tier) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| Ok(tier.sync_all()?))
}

/// Writes the index, so that opening the file is fast, and syncs. A tier does so by itself when its
/// journal is full. Fails as kvmem_disk_tier_sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_checkpoint(tier: *const kvmem_disk_tier) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| Ok(tier.checkpoint()?))
}

/// Reads the statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_get_stats(
    tier: *const kvmem_disk_tier,
    out_stats: *mut kvmem_disk_tier_stats,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    // SAFETY: promise 1 of the C caller, for `out_stats`.
    on(&promise, tier, |tier| unsafe { tier_values::get_stats(tier, out_stats) })
}

/// Registers the memory of a pool with the rings of the tier's file: the kernel looks its pages up
/// and pins them once, and not for each transfer. Values of the pool are transferred as before, and
/// faster. The memory stays pinned until the tier is gone or kvmem_disk_tier_deregister_memory is
/// called; the pool gives no pages back to the kernel meanwhile.
///
/// If this fails, transfers work as before. KVMEM_ERR_NOT_AVAILABLE: the tier does not use
/// io_uring, or the kernel is older than Linux 6.12. KVMEM_ERR_LIMIT, for example by
/// RLIMIT_MEMLOCK, and KVMEM_ERR_IN_USE if the pool is still being prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_register_memory(
    tier: *const kvmem_disk_tier,
    pool: *const kvmem_pool,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| Ok(tier.register_memory(kvmem_pool::table().get(&promise, pool)?)?))
}

/// Deregisters the memory of a pool. Does nothing if it is not registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_deregister_memory(
    tier: *const kvmem_disk_tier,
    pool: *const kvmem_pool,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| {
        tier.deregister_memory(kvmem_pool::table().get(&promise, pool)?);
        Ok(())
    })
}

/// Closes a tier. Its file stays open and locked until the caches above it are destroyed, too. The
/// end writes a checkpoint if anything has changed, for at most ten seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_destroy(tier: *mut kvmem_disk_tier) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, tier)
}
