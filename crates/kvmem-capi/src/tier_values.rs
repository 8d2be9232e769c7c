//! *Tier values*: storing and fetching on a set of disk tiers. A single one is a set of one.

use std::ffi::c_void;

use kvmem::tier::{TierHints, TierRead, TierValue};
use kvmem_tier::{Fetched, TierSet};

use crate::call::{list, out, size, value_bytes};
use crate::error::CallError;
use crate::hints;
use crate::kv_value::{key_at, kvmem_kv_cache_key};
use crate::stats::kvmem_disk_tier_stats;
use crate::status::*;

/// A value to store. Members that are 0 select the defaults.
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
    /// How long the value is of use, in milliseconds; at least so long, rounded up to whole seconds
    /// of the wall clock. Afterwards it is a miss, and is evicted before all others. 0: forever.
    pub ttl_ms: u64,
    /// 0 to 3: values of a lower priority are evicted first.
    pub priority: u32,
    /// 0.
    pub reserved: u32,
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
/// A fetch: a power cut took the bytes of the value before they were synced. The value is removed.
pub const KVMEM_FETCHED_LOST: u32 = 5;

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
    /// KVMEM_FETCHED_DAMAGED, KVMEM_FETCHED_FAILED or KVMEM_FETCHED_LOST.
    pub outcome: u32,
    /// Receives 0.
    pub reserved: u32,
}

/// Borrows a value of the caller.
///
/// # Safety
/// Promise 1 of the C caller, for the key and the bytes.
unsafe fn stored<'a>(value: &kvmem_disk_tier_value) -> Result<TierValue<'a>, CallError> {
    if value.reserved != 0 {
        return Err(CallError::invalid(format_args!(
            "reserved of a value is {}: leave it 0",
            value.reserved
        )));
    }
    let priority = hints::priority(value.priority)?;
    // SAFETY: the promise of the caller.
    let (key, bytes) =
        unsafe { (key_at(value.key, value.key_bytes)?, value_bytes(value.data, value.bytes)?) };
    let hints = TierHints { ttl: hints::ttl(value.ttl_ms), priority, ..TierHints::default() };
    Ok(TierValue::new(key, bytes).with_hints(hints))
}

/// Stores `count` values; see kvmem_disk_tier_store.
///
/// # Safety
/// Promise 1 of the C caller, for all pointers.
pub(crate) unsafe fn store(
    tier: &TierSet,
    values: *const kvmem_disk_tier_value,
    count: u64,
    out_results: *mut kvmem_status,
) -> Result<(), CallError> {
    // SAFETY: promise 1 of the C caller, for `values` and the bytes that they name.
    let values: Vec<TierValue<'_>> = unsafe { list(values, count, "values") }?
        .iter()
        .map(|value| unsafe { stored(value) })
        .collect::<Result<_, CallError>>()?;
    let results = tier.store_with(&values);
    // An older value must not be taken for the one that was not stored.
    let failed = values.iter().zip(&results).filter(|(_, result)| result.is_err());
    let failed: Vec<&[u8]> = failed.map(|(value, _)| value.key).collect();
    if !failed.is_empty() {
        // If this fails, too, the tier is read-only, which the status says.
        let _ = tier.remove(&failed);
    }
    let results: Vec<_> = results.into_iter().map(|one| one.map_err(CallError::from)).collect();
    if !out_results.is_null() {
        for (index, result) in results.iter().enumerate() {
            let status = result.as_ref().map_or_else(CallError::status, |()| KVMEM_OK);
            // SAFETY: promise 1 of the C caller: there is a place for each of `count` results, and
            // `store_with` returned one for each value.
            unsafe { out_results.add(index).write(status) };
        }
    }
    results.into_iter().collect()
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

/// Fetches `count` values; see kvmem_disk_tier_fetch.
///
/// # Safety
/// Promise 1 of the C caller, for all pointers.
pub(crate) unsafe fn fetch(
    tier: &TierSet,
    requests: *mut kvmem_disk_tier_request,
    count: u64,
) -> Result<(), CallError> {
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
            (result.bytes, result.outcome, result.reserved) = (bytes, KVMEM_FETCHED_TOO_SHORT, 0);
            if bytes <= one.capacity {
                // SAFETY: promise 1 of the C caller: `capacity` bytes are writable, and nobody
                // else uses them during the call. No two ranges overlap, which was checked.
                let into = unsafe { memory(one.data, size(bytes)) };
                fetches.push(TierRead { key: keys[index], into });
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
                Fetched::Lost => KVMEM_FETCHED_LOST,
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

/// Returns the length of a value; see kvmem_disk_tier_len_of.
///
/// # Safety
/// Promise 1 of the C caller, for all pointers.
pub(crate) unsafe fn len_of(
    tier: &TierSet,
    key: *const c_void,
    key_bytes: u64,
    out_bytes: *mut u64,
) -> Result<(), CallError> {
    // SAFETY: promise 1 of the C caller, for `out_bytes`.
    let bytes = unsafe { out(out_bytes, "out_bytes") }?;
    // SAFETY: promise 1 of the C caller, for `key`.
    let key = unsafe { key_at(key, key_bytes) }?;
    bytes.put(tier.len_of(key).ok_or(CallError::NotFound)?);
    Ok(())
}

/// Removes the values of `count` keys; see kvmem_disk_tier_remove.
///
/// # Safety
/// Promise 1 of the C caller, for all pointers.
pub(crate) unsafe fn remove(
    tier: &TierSet,
    keys: *const kvmem_kv_cache_key,
    count: u64,
    out_removed: *mut u64,
) -> Result<(), CallError> {
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
}

/// Reads the statistics; see kvmem_disk_tier_get_stats.
///
/// # Safety
/// Promise 1 of the C caller, for `out_stats`.
pub(crate) unsafe fn get_stats(
    tier: &TierSet,
    out_stats: *mut kvmem_disk_tier_stats,
) -> Result<(), CallError> {
    // SAFETY: promise 1 of the C caller, for `out_stats`.
    let figures = unsafe { out(out_stats, "out_stats") }?;
    figures.put((&tier.stats()).into());
    Ok(())
}
