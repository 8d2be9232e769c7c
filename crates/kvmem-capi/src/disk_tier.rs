//! *Disk tier*: values on a disk, found again after a restart.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use kvmem_tier::device::Engine;
use kvmem_tier::{Admission, DiskTier, Fetch, Fetched, TierOptions, Verify};

use crate::call::{destroy, guard, list, on, out, size, some_text, value_bytes};
use crate::error::CallError;
use crate::kv_cache::{key_at, kvmem_kv_cache_key};
use crate::options::{self, Options, flag};
use crate::promise::ObjectPromise;
use crate::status::*;
use crate::table::{Object, object};

/// Values on a local disk, found again by their keys after a restart. A full tier evicts the values
/// that were used least recently. A damaged value is a miss, and never the wrong bytes. Below a
/// cache it receives what the cache evicts: see kvmem_kv_cache_options. Owned by the caller:
/// kvmem_disk_tier_destroy. Any thread, several at once; a call blocks until the drive is done.
///
/// One process uses a file at a time. In a forked child, every call on a tier of the parent returns
/// KVMEM_ERR_FORKED, except kvmem_disk_tier_destroy.
pub struct kvmem_disk_tier {
    _opaque: [u8; 0],
}

object!(kvmem_disk_tier, Arc<DiskTier>, DiskTier);

/// Verification when a tier is opened: none; each value is verified when it is fetched. The
/// default.
pub const KVMEM_VERIFY_LAZY: u32 = 0;
/// Verification when a tier is opened: all values are read, and damaged ones removed.
pub const KVMEM_VERIFY_ALL: u32 = 1;

/// Admission: every evicted value is written. The default.
pub const KVMEM_ADMIT_ALL: u32 = 0;
/// Admission: an evicted value is written if its key is evicted a second time.
pub const KVMEM_ADMIT_SECOND_EVICTION: u32 = 1;

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
    /// Maximum number of values, fixed when the file is made. The file keeps 128 bytes for each.
    /// UINT64_MAX (the default): one for each 32 KiB of the file.
    pub max_entries: u64,
    /// Bytes of each of the two journals, fixed when the file is made. UINT64_MAX (the default):
    /// 1/64 of the file, at most 4 MiB.
    pub journal_bytes: u64,
    /// Limits the bytes of evicted values that are written per second; more are dropped. UINT64_MAX
    /// (the default): no limit.
    pub max_write_bytes_per_s: u64,
    /// Maximum number of transfers that one call has in flight, from 1 to 4096. The default is 32.
    pub depth: u32,
    /// 1: makes a new tier of a file that holds something else or is damaged; everything in it is
    /// lost. The default is 0.
    pub format: u32,
    /// KVMEM_VERIFY_LAZY (the default) or KVMEM_VERIFY_ALL.
    pub verify: u32,
    /// Which values that a cache evicts are written: KVMEM_ADMIT_ALL (the default) or
    /// KVMEM_ADMIT_SECOND_EVICTION. Values given to kvmem_disk_tier_store are always written.
    pub admission: u32,
}

// SAFETY: `Options` requires a `u64` size first, no padding, and that all bits are valid: the
// members are numbers, of 8 bytes or in pairs of 4.
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

/// Converts the options.
fn tier_options(wanted: &kvmem_disk_tier_options) -> Result<TierOptions, CallError> {
    let given = |number: u64, name: &str| match number {
        u64::MAX => Ok(None),
        0 => Err(CallError::invalid(format_args!(
            "{name} is 0: use at least 1, or UINT64_MAX for the default"
        ))),
        number => Ok(Some(number)),
    };
    if !(1..=MAX_DEPTH).contains(&wanted.depth) {
        return Err(CallError::invalid(format_args!(
            "depth is {}: use 1 to {MAX_DEPTH}",
            wanted.depth
        )));
    }
    Ok(TierOptions {
        bytes: given(wanted.bytes, "bytes")?,
        depth: Some(wanted.depth),
        max_entries: given(wanted.max_entries, "max_entries")?,
        journal_bytes: given(wanted.journal_bytes, "journal_bytes")?,
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
        admission: match wanted.admission {
            KVMEM_ADMIT_ALL => Admission::All,
            KVMEM_ADMIT_SECOND_EVICTION => Admission::SecondEviction,
            other => {
                return Err(CallError::invalid(format_args!(
                    "admission is {other}: use KVMEM_ADMIT_ALL or KVMEM_ADMIT_SECOND_EVICTION"
                )));
            }
        },
        max_write_bytes_per_s: given(wanted.max_write_bytes_per_s, "max_write_bytes_per_s")?,
        ..TierOptions::default()
    })
}

/// What opening a tier found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_report {
    /// Values found.
    pub entries: u64,
    /// Changes that the journal had since the last checkpoint.
    pub replayed: u64,
    /// Entries that contradict others, and were dropped.
    pub dropped: u64,
    /// Values that KVMEM_VERIFY_ALL found damaged, and removed.
    pub damaged: u64,
    /// Whether the tier was made just now: 1 or 0.
    pub created: u32,
    /// Whether transfers bypass the page cache: 1 or 0.
    pub is_direct: u32,
    /// Whether io_uring transfers the bytes: 1; or threads, which are slower: 0.
    pub has_io_uring: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Opens the tier in the file or block device at `path`, and makes it if the file is new. `options`
/// may be NULL. `out_report` (may be NULL) receives what was found.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another
/// process has it open as one for three seconds, KVMEM_ERR_INVALID_ARGUMENT if it is too short, and
/// KVMEM_ERR_SYSTEM.
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
        let options = tier_options(&unsafe { options::read(options) }?)?;
        let (tier, found) = DiskTier::open(path, &options)?;
        let report = kvmem_disk_tier_report {
            entries: found.entries,
            replayed: found.replayed,
            dropped: found.dropped,
            damaged: found.damaged,
            created: u32::from(found.created),
            is_direct: u32::from(tier.device().is_direct()),
            has_io_uring: u32::from(tier.device().engine() == Engine::IoUring),
            reserved: 0,
        };
        made.put(kvmem_disk_tier::table().insert(Arc::new(tier))?);
        // SAFETY: promise 1 of the C caller, for `out_report`.
        if let Ok(place) = unsafe { out(out_report, "") } {
            place.put(report);
        }
        Ok(())
    })
}

/// A value to store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_value {
    /// The bytes of the key; may be NULL if there are none.
    pub key: *const c_void,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The bytes of the value; may be NULL if there are none.
    pub data: *const c_void,
    /// Number of bytes of the value.
    pub bytes: u64,
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
    on(&promise, tier, |tier| {
        // SAFETY: promise 1 of the C caller, for `values` and the bytes that they name.
        let values: Vec<(&[u8], &[u8])> = unsafe { list(values, count, "values") }?
            .iter()
            .map(|value| unsafe {
                Ok((key_at(value.key, value.key_bytes)?, value_bytes(value.data, value.bytes)?))
            })
            .collect::<Result<_, CallError>>()?;
        let results = tier.store(&values);
        // An older value must not be taken for the one that was not stored.
        let failed = values.iter().zip(&results).filter(|(_, result)| result.is_err());
        let failed: Vec<&[u8]> = failed.map(|((key, _), _)| *key).collect();
        if !failed.is_empty() {
            // If this fails, too, the tier is read-only, which the status says.
            let _ = tier.remove(&failed);
        }
        let results: Vec<_> = results.into_iter().map(|one| one.map_err(CallError::from)).collect();
        if !out_results.is_null() {
            for (index, result) in results.iter().enumerate() {
                let status = result.as_ref().map_or_else(CallError::status, |()| KVMEM_OK);
                // SAFETY: promise 1 of the C caller: there is a place for each of `count` results,
                // and `store` returned one for each value.
                unsafe { out_results.add(index).write(status) };
            }
        }
        results.into_iter().collect()
    })
}

/// A fetch: the value is in place, and its checksum is right.
pub const KVMEM_FETCHED_HIT: u32 = 0;
/// A fetch: the key has no value.
pub const KVMEM_FETCHED_ABSENT: u32 = 1;
/// A fetch: the value is longer than the memory for it; `bytes` has its length.
pub const KVMEM_FETCHED_TOO_SHORT: u32 = 2;
/// A fetch: the bytes of the disk were not those that were stored. The value is removed.
pub const KVMEM_FETCHED_DAMAGED: u32 = 3;
/// A fetch: the drive failed. The value is removed.
pub const KVMEM_FETCHED_FAILED: u32 = 4;

/// A value to fetch, and the result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_request {
    /// The bytes of the key; may be NULL if there are none.
    pub key: *const c_void,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// Memory for the value; may be NULL if `capacity` is 0. If it begins at a multiple of 4096
    /// bytes, the drive writes to it directly.
    pub data: *mut c_void,
    /// Bytes of this memory: at least those of the value.
    pub capacity: u64,
    /// Receives the bytes of the value, with KVMEM_FETCHED_HIT and KVMEM_FETCHED_TOO_SHORT;
    /// otherwise 0.
    pub bytes: u64,
    /// Receives KVMEM_FETCHED_HIT, KVMEM_FETCHED_ABSENT, KVMEM_FETCHED_TOO_SHORT,
    /// KVMEM_FETCHED_DAMAGED or KVMEM_FETCHED_FAILED.
    pub outcome: u32,
    /// Receives 0.
    pub reserved: u32,
}

/// Returns an error if two of the ranges of memory share bytes.
fn check_apart(requests: &[kvmem_disk_tier_request]) -> Result<(), CallError> {
    let mut ranges: Vec<(u64, u64)> = requests
        .iter()
        .map(|one| (one.data.addr() as u64, one.capacity))
        .filter(|&(_, capacity)| capacity > 0)
        .collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(CallError::invalid(format_args!(
            "the {} bytes at {:#x} and the {} bytes at {:#x} overlap: give each request memory of \
             its own",
            pair[0].1, pair[0].0, pair[1].1, pair[1].0
        ))),
    }
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
    on(&promise, tier, |tier| {
        // SAFETY: promise 1 of the C caller, for `requests`.
        let wanted = unsafe { list(requests.cast_const(), count, "requests") }?.to_vec();
        check_apart(&wanted)?;
        let mut keys = Vec::with_capacity(wanted.len());
        for one in &wanted {
            // SAFETY: promise 1 of the C caller, for the bytes of each key.
            keys.push(unsafe { key_at(one.key, one.key_bytes) }?);
            // SAFETY: as above; the bytes are only counted.
            unsafe { value_bytes(one.data, one.capacity) }?;
        }
        let mut results = wanted.clone();
        let mut left: Vec<usize> = (0..wanted.len()).collect();
        // Again for values that were replaced by some of another length meanwhile.
        while !left.is_empty() {
            let mut fetches = Vec::with_capacity(left.len());
            let mut fitting = Vec::with_capacity(left.len());
            for &index in &left {
                let (one, result) = (&wanted[index], &mut results[index]);
                let bytes = tier.len_of(keys[index]).unwrap_or(0);
                (result.bytes, result.outcome, result.reserved) =
                    (bytes, KVMEM_FETCHED_TOO_SHORT, 0);
                if bytes <= one.capacity {
                    // SAFETY: promise 1 of the C caller: `capacity` bytes are writable, and nobody
                    // else uses them during the call. No two ranges overlap, which was checked.
                    let into = unsafe { memory(one.data, size(bytes)) };
                    fetches.push(Fetch { key: keys[index], into });
                    fitting.push(index);
                }
            }
            let outcomes = tier.fetch(&mut fetches);
            left.clear();
            for (index, outcome) in fitting.into_iter().zip(outcomes) {
                let result = &mut results[index];
                result.outcome = match outcome {
                    Fetched::Hit => KVMEM_FETCHED_HIT,
                    Fetched::Damaged => KVMEM_FETCHED_DAMAGED,
                    Fetched::Failed => KVMEM_FETCHED_FAILED,
                    Fetched::Length { .. } => {
                        left.push(index);
                        continue;
                    }
                    _ => KVMEM_FETCHED_ABSENT,
                };
                if result.outcome != KVMEM_FETCHED_HIT {
                    result.bytes = 0;
                }
            }
        }
        for (index, result) in results.into_iter().enumerate() {
            // SAFETY: promise 1 of the C caller: the list has `count` writable elements, of which
            // `results` is a copy.
            unsafe { requests.add(index).write(result) };
        }
        Ok(())
    })
}

/// Returns memory for a value.
///
/// # Safety
/// If there are any, the bytes are writable for `'a`, and nobody else uses them meanwhile.
unsafe fn memory<'a>(data: *mut c_void, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise; `value_bytes` has checked that the pointer is not NULL.
    unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) }
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
    on(&promise, tier, |tier| {
        // SAFETY: promise 1 of the C caller, for `out_bytes`.
        let bytes = unsafe { out(out_bytes, "out_bytes") }?;
        // SAFETY: promise 1 of the C caller, for `key`.
        let key = unsafe { key_at(key, key_bytes) }?;
        bytes.put(tier.len_of(key).ok_or(CallError::NotFound)?);
        Ok(())
    })
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
    on(&promise, tier, |tier| {
        // SAFETY: promise 1 of the C caller, for `keys` and the bytes of each.
        let keys: Vec<&[u8]> = unsafe { list(keys, count, "keys") }?
            .iter()
            .map(|key| unsafe { key_at(key.key, key.key_bytes) })
            .collect::<Result<_, CallError>>()?;
        let count = tier.remove(&keys)?;
        // SAFETY: promise 1 of the C caller, for `out_removed`.
        if let Ok(removed) = unsafe { out(out_removed, "") } {
            removed.put(count as u64);
        }
        Ok(())
    })
}

/// Removes all values, durably. Fails as kvmem_disk_tier_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_clear(tier: *const kvmem_disk_tier) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| Ok(tier.clear()?))
}

/// Makes all that was stored and removed before durable: a power cut does not undo it. After
/// KVMEM_ERR_SYSTEM the tier stores nothing until it is opened again.
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

/// Statistics of a disk tier since it was opened. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_stats {
    /// Values held.
    pub entries: u64,
    /// Their bytes, without padding.
    pub bytes: u64,
    /// Bytes of the file for values.
    pub capacity: u64,
    /// Bytes of the file that values use, padding included.
    pub used: u64,
    /// Bytes of the file that are not used any more, because what was written there was lost.
    pub quarantined: u64,
    /// Values stored.
    pub stored: u64,
    /// Bytes of values written, padding included.
    pub written_bytes: u64,
    /// Bytes of journal, checkpoints and superblocks written.
    pub metadata_bytes: u64,
    /// Values fetched.
    pub hits: u64,
    /// Fetches of keys without a value.
    pub misses: u64,
    /// Fetches of values whose bytes were damaged.
    pub checksum_misses: u64,
    /// Fetches that the drive failed.
    pub io_misses: u64,
    /// Values that a cache evicted and that were not written, by `admission` or
    /// `max_write_bytes_per_s`.
    pub not_admitted: u64,
    /// Values evicted.
    pub evictions: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Memory that the index takes.
    pub index_bytes: u64,
    /// Whether the journal failed: 1 or 0. Nothing is stored then until the tier is opened again.
    pub is_read_only: u64,
}

/// Reads the statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_get_stats(
    tier: *const kvmem_disk_tier,
    out_stats: *mut kvmem_disk_tier_stats,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, tier, |tier| {
        // SAFETY: promise 1 of the C caller, for `out_stats`.
        let figures = unsafe { out(out_stats, "out_stats") }?;
        let stats = tier.stats();
        figures.put(kvmem_disk_tier_stats {
            entries: stats.entries,
            bytes: stats.bytes,
            capacity: stats.capacity,
            used: stats.used,
            quarantined: stats.quarantined,
            stored: stats.stored,
            written_bytes: stats.written_bytes,
            metadata_bytes: stats.metadata_bytes,
            hits: stats.hits,
            misses: stats.misses,
            checksum_misses: stats.checksum_misses,
            io_misses: stats.io_misses,
            not_admitted: stats.not_admitted,
            evictions: stats.evictions,
            checkpoints: stats.checkpoints,
            index_bytes: stats.index_bytes,
            is_read_only: u64::from(stats.read_only),
        });
        Ok(())
    })
}

/// Closes a tier. Its file stays open and locked until the caches above it are destroyed, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_destroy(tier: *mut kvmem_disk_tier) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, tier)
}
