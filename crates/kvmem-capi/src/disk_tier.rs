//! *Disk tier*: values on one disk or several, found again after a restart.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use kvmem::tier::{TierHints, TierRead, TierValue};
use kvmem_tier::{
    Admission, Codec, DiskTier, DiskTierOptions, EvictionOrder, Fetched, Keyring, OpenReport,
    TierSet, TierSetError, Verify,
};

use crate::admit_callback::{AdmitPolicy, kvmem_disk_tier_admit_fn};
use crate::argument::{Handle, In, Out, Owned};
use crate::call::{Place, guard, size, value_bytes};
use crate::error::CallError;
use crate::hints;
use crate::kv_value::{borrow_keys, kvmem_kv_cache_key};
use crate::options::{self, choice, flag, options};
use crate::pool::kvmem_pool;
use crate::promise::ObjectPromise;
use crate::stats::{kvmem_disk_tier_report, kvmem_disk_tier_stats};
use crate::status::*;
use crate::table::object;
use crate::user_data::UserData;

/// Values on a local disk, or on several, found again by their keys after a restart. A full tier
/// evicts expired values first, then those of the lowest priority, in the order of `eviction`. A
/// damaged value is a miss, and never the wrong bytes. Below a cache it receives what the cache
/// evicts: see kvmem_disk_tier_as_lower_tier. Owned by the caller: kvmem_disk_tier_destroy. Any
/// thread, several at once; a call blocks until the drives are done.
///
/// On several devices, each key belongs to one of them, by a hash of the key and of the file's
/// identity: files may be named in any order, and a device that is gone loses only its own keys.
/// Transfers on different devices run side by side.
///
/// One process uses a file at a time. In a forked child, every call on a tier of the parent returns
/// KVMEM_ERR_FORKED, except kvmem_disk_tier_destroy.
pub struct kvmem_disk_tier {
    _opaque: [u8; 0],
}

object!(kvmem_disk_tier, Arc<TierSet>);

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

options! {
    /// Options of a disk tier. Fill them in with kvmem_disk_tier_options_init first.
    kvmem_disk_tier_options: kvmem_disk_tier_options_init;

    /// Length of the file, which becomes as long, with its space allocated. In a shorter file
    /// values that have no room any more are evicted.
    /// UINT64_MAX (the default): a file keeps its length. A block device always does.
    bytes: u64 = u64::MAX,
    /// Maximum number of values, fixed when the file is made. The file keeps 260 bytes for each.
    /// UINT64_MAX (the default): one for each 32 KiB of the file.
    max_entries: u64 = u64::MAX,
    /// Limits the bytes that are written per second, those of the index too: an evicted value that
    /// comes when they are used up is dropped. Values given to kvmem_disk_tier_store are always
    /// written, and count. UINT64_MAX (the default): no limit.
    max_write_bytes_per_s: u64 = u64::MAX,
    /// 1: makes a new tier of a file that holds something else or is damaged; everything in it is
    /// lost. The default is 0.
    format: u32 = 0,
    /// KVMEM_VERIFY_LAZY (the default) or KVMEM_VERIFY_ALL.
    verify: u32 = KVMEM_VERIFY_LAZY,
    /// Which values that a cache evicts are written: KVMEM_ADMIT_ALL (the default),
    /// KVMEM_ADMIT_SECOND_EVICTION or KVMEM_ADMIT_CUSTOM. Values given to kvmem_disk_tier_store are
    /// always written.
    admission: u32 = KVMEM_ADMIT_ALL,
    /// Which values a full tier evicts first, of those with the same priority:
    /// KVMEM_TIER_EVICT_LRU (the default) or KVMEM_TIER_EVICT_FIFO. The file does not keep it.
    eviction: u32 = KVMEM_TIER_EVICT_LRU,
    /// 1: opens the file with O_DSYNC. A value survives a power cut as soon as it is stored,
    /// without kvmem_disk_tier_sync, and storing takes longer. The default is 0.
    dsync: u32 = 0,
    /// 1: opens a tier that a process of another host had open, which has ended without closing it.
    /// The default is 0: such a tier is KVMEM_ERR_IN_USE. A process of this host that has ended
    /// needs no such word.
    take_over: u32 = 0,
    /// Chooses the evicted values that are written, with KVMEM_ADMIT_CUSTOM. NULL (the default)
    /// otherwise.
    on_admit: kvmem_disk_tier_admit_fn = None,
    /// Passed to `on_admit` and `on_admit_release`.
    on_admit_user: *mut c_void = std::ptr::null_mut(),
    /// Called once with `on_admit_user`, by any thread, when the tier, or each tier of a set, is
    /// gone; may be NULL. Not called if the tier could not be opened.
    on_admit_release: Option<unsafe extern "C" fn(user: *mut c_void)> = None,
    /// How values are compressed before they are written, without loss: "none" (the default, also
    /// NULL) or "auto". Values are read whatever this says.
    codec: In<c_char> = In::NULL,
    /// A file with keys that encrypt values, one of 64 hexadecimal digits a line: the first one
    /// writes, all of them read. Only its owner may change it, and no others read it;
    /// "/dev/fd/3" is a descriptor. NULL (the default): values are not encrypted, and those that
    /// are encrypted are misses. With a codec or keys, older versions do not open the file.
    key_file: In<c_char> = In::NULL,
}

/// Options of the library, and the user data of the callback that they share.
struct ConvertedOptions {
    options: DiskTierOptions,
    admit: Option<Arc<UserData>>,
}

impl ConvertedOptions {
    fn read(options: &In<kvmem_disk_tier_options>) -> Result<ConvertedOptions, CallError> {
        let wanted = options::read(options)?;
        let given = |number: u64, name: &str| match number {
            u64::MAX => Ok(None),
            0 => Err(CallError::invalid(format_args!(
                "{name} is 0: use at least 1, or UINT64_MAX for the default"
            ))),
            number => Ok(Some(number)),
        };
        let user_data = UserData::new(wanted.on_admit_user, wanted.on_admit_release);
        let policy = AdmitPolicy::new(wanted.on_admit, user_data);
        let admit = policy.as_ref().map(|policy| Arc::clone(&policy.user_data));
        let is_custom = policy.is_some();
        let admission = choice!(wanted.admission:
            KVMEM_ADMIT_ALL => Admission::All,
            KVMEM_ADMIT_SECOND_EVICTION => Admission::SecondEviction,
            KVMEM_ADMIT_CUSTOM => match policy {
                Some(policy) => Admission::Custom(Arc::new(policy)),
                None => return Err(CallError::invalid(
                    "admission is KVMEM_ADMIT_CUSTOM and on_admit is NULL: set a function",
                )),
            },
        )?;
        if is_custom && wanted.admission != KVMEM_ADMIT_CUSTOM {
            return Err(CallError::invalid(format_args!(
                "on_admit is set and admission is {}: use KVMEM_ADMIT_CUSTOM, or NULL",
                wanted.admission
            )));
        }
        let codec = match wanted.codec.text("codec")? {
            None => Codec::None,
            Some(name) => Codec::named(name).ok_or_else(|| {
                CallError::invalid(format_args!("codec is {name:?}: use \"none\" or \"auto\""))
            })?,
        };
        let options = DiskTierOptions {
            bytes: given(wanted.bytes, "bytes")?,
            max_entries: given(wanted.max_entries, "max_entries")?,
            dsync: flag(wanted.dsync, "dsync")?,
            format: flag(wanted.format, "format")?,
            verify: choice!(wanted.verify:
                KVMEM_VERIFY_LAZY => Verify::Lazy,
                KVMEM_VERIFY_ALL => Verify::All,
            )?,
            admission,
            eviction: choice!(wanted.eviction:
                KVMEM_TIER_EVICT_LRU => EvictionOrder::Lru,
                KVMEM_TIER_EVICT_FIFO => EvictionOrder::Fifo,
            )?,
            max_write_bytes_per_s: given(wanted.max_write_bytes_per_s, "max_write_bytes_per_s")?,
            take_over: flag(wanted.take_over, "take_over")?,
            codec,
            keys: keyring(&wanted.key_file)?,
            ..DiskTierOptions::default()
        };
        Ok(ConvertedOptions { options, admit })
    }

    /// Returns the handle of a tier that was opened, which owns the user data of the callback then.
    fn insert(self, tier: TierSet, made: Place<*mut kvmem_disk_tier>) -> Result<(), CallError> {
        made.insert(Arc::new(tier))?;
        self.admit.inspect(|admit| admit.own());
        Ok(())
    }
}

/// Reads a key file, if there is one.
pub(crate) fn keyring(path: &In<c_char>) -> Result<Option<Arc<Keyring>>, CallError> {
    let path = path.text("key_file")?;
    Ok(path.map(Keyring::open).transpose()?.map(Arc::new))
}

/// Opens the tier in the file or block device at `path`, and makes it if the file is new. `options`
/// may be NULL. `out_report` (may be NULL) receives what was found.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another
/// process has it open as one for three seconds or a process of another host may have,
/// KVMEM_ERR_INVALID_ARGUMENT if it is too short or the key file has another form, KVMEM_ERR_LIMIT
/// if memory for keys cannot be locked, and KVMEM_ERR_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_open(
    path: In<c_char>,
    options: In<kvmem_disk_tier_options>,
    out_tier: Out<*mut kvmem_disk_tier>,
    out_report: Out<kvmem_disk_tier_report>,
) -> kvmem_status {
    guard(|| {
        let made = out_tier.get("out_tier")?;
        let path = path.some_text("path")?;
        let converted = ConvertedOptions::read(&options)?;
        let (tier, found) = DiskTier::open(path, &converted.options)?;
        converted.insert(TierSet::new(vec![tier])?, made)?;
        out_report.put_if_wanted(kvmem_disk_tier_report::new(&found));
        Ok(())
    })
}

/// Copies paths.
fn paths_of(paths: &In<In<c_char>>, count: u64) -> Result<Vec<PathBuf>, CallError> {
    paths.list(count, "paths")?.iter().map(|path| Ok(path.some_text("paths")?.into())).collect()
}

/// Writes the reports of those tiers that were opened, by the places of their paths.
///
/// # Safety
/// `out_reports` has a place for each element.
unsafe fn write_reports<'a>(
    reports: impl Iterator<Item = Option<&'a OpenReport>>,
    out_reports: &Out<kvmem_disk_tier_report>,
) {
    for (index, report) in reports.enumerate() {
        if let (Some(report), false) = (report, out_reports.is_null()) {
            // SAFETY: the promise of the caller.
            unsafe { out_reports.pointer().add(index).write(kvmem_disk_tier_report::new(report)) };
        }
    }
}

/// Opens the tiers in `count` files or block devices, side by side, and makes those that are new.
/// `options` (may be NULL) hold for each of them. `out_reports` (may be NULL) receives what was
/// found in each, in the order of `paths`.
///
/// Fails as kvmem_disk_tier_open, and names the file. KVMEM_ERR_INVALID_ARGUMENT if there is no
/// file, or if one is a copy of another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_open_set(
    paths: In<In<c_char>>,
    count: u64,
    options: In<kvmem_disk_tier_options>,
    out_tier: Out<*mut kvmem_disk_tier>,
    out_reports: Out<kvmem_disk_tier_report>,
) -> kvmem_status {
    guard(|| {
        let made = out_tier.get("out_tier")?;
        let paths = paths_of(&paths, count)?;
        let converted = ConvertedOptions::read(&options)?;
        let (set, reports) = TierSet::open(&paths, &converted.options)?;
        // SAFETY: `out_reports` has a place for each of `count` reports.
        unsafe { write_reports(reports.iter().map(Some), &out_reports) };
        converted.insert(set, made)
    })
}

/// Opens those of the tiers that can be opened, as kvmem_disk_tier_open_set. The keys of the others
/// belong to the rest meanwhile. `out_results` (may be NULL) receives the status of each file, and
/// `out_reports` (may be NULL) the report of each file that was opened; other elements keep their
/// bytes.
///
/// A device that comes back has the values of the time before: a value that was replaced meanwhile
/// is found in its older form. Keys that are hashes of their values do not have that problem; with
/// others, open such a device with `format`, or call kvmem_disk_tier_clear.
///
/// Fails if none can be opened: KVMEM_ERR_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_open_available(
    paths: In<In<c_char>>,
    count: u64,
    options: In<kvmem_disk_tier_options>,
    out_tier: Out<*mut kvmem_disk_tier>,
    out_reports: Out<kvmem_disk_tier_report>,
    out_results: Out<kvmem_status>,
) -> kvmem_status {
    guard(|| {
        let made = out_tier.get("out_tier")?;
        let paths = paths_of(&paths, count)?;
        let converted = ConvertedOptions::read(&options)?;
        let (set, results) = TierSet::open_available(&paths, &converted.options)?;
        // SAFETY: `out_reports` has a place for each of `count` reports.
        unsafe { write_reports(results.iter().map(|one| one.as_ref().ok()), &out_reports) };
        converted.insert(set, made)?;
        let status = |result: Result<OpenReport, TierSetError>| match result {
            Ok(_) => KVMEM_OK,
            Err(error) => CallError::from(error).status(),
        };
        // SAFETY: `out_results` has a place for each of `count` results.
        unsafe { out_results.put_all_if_wanted(results.into_iter().map(status)) };
        Ok(())
    })
}

impl From<TierSetError> for CallError {
    fn from(error: TierSetError) -> CallError {
        let text = error.to_string();
        match error {
            TierSetError::Open { source, .. } => {
                CallError::new(CallError::from(source).status(), text)
            }
            _ => CallError::invalid(text),
        }
    }
}

/// A value to store. Members that are 0 select the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_value {
    /// The bytes of the key; may be NULL if there are none.
    pub key: In<c_void>,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The bytes of the value; may be NULL if there are none.
    pub data: In<c_void>,
    /// Number of bytes of the value.
    pub bytes: u64,
    /// How long the value is of use, in milliseconds; at least so long, rounded up to whole seconds
    /// of the wall clock. Afterwards it is a miss, and is evicted before all others. 0: forever.
    pub ttl_ms: u64,
    /// 0 to 3: values of a lower priority are evicted first.
    pub priority: u32,
    /// The type of the value's elements, as in kvmem_value_hints.
    pub data_type: u32,
    /// The name of the namespace whose keys encrypt the value, such as that of a tenant; may be
    /// NULL if it has no bytes, as the one without a name. See kvmem_disk_tier_forget_namespace.
    pub namespace_name: In<c_void>,
    /// Number of bytes of the name.
    pub namespace_bytes: u64,
}

/// A fetch: the value is in place, and its checksum is right.
pub const KVMEM_FETCHED_HIT: u32 = 0;
/// A fetch: the key has no value.
pub const KVMEM_FETCHED_ABSENT: u32 = 1;
/// A fetch: the value is longer than the memory for it; `bytes` has its length.
pub const KVMEM_FETCHED_TOO_SHORT: u32 = 2;
/// A fetch: the bytes of the disk were not those that were stored. The value is removed.
pub const KVMEM_FETCHED_DAMAGED: u32 = 3;
/// A fetch: the drive failed. The value stays, and is read again later. It is removed if the file
/// ends before it, or if only this value fails again and again.
pub const KVMEM_FETCHED_FAILED: u32 = 4;
/// A fetch: a power cut took the bytes of the value before they were synced. The value is removed.
pub const KVMEM_FETCHED_LOST: u32 = 5;
/// A fetch: the drive has failed to read the value, and does not read it again yet.
pub const KVMEM_FETCHED_SUSPECT: u32 = 6;
/// A fetch: the value is encrypted with a key that the tier does not have. It stays.
pub const KVMEM_FETCHED_NO_KEY: u32 = 7;
/// A fetch: the bytes have their checksum, and their tag is wrong: a person has changed them, or
/// put them in the place of others. The value is removed.
pub const KVMEM_FETCHED_BAD_TAG: u32 = 8;

/// A value to fetch, and the result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_disk_tier_request {
    /// The bytes of the key; may be NULL if there are none.
    pub key: In<c_void>,
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
    /// KVMEM_FETCHED_DAMAGED, KVMEM_FETCHED_FAILED, KVMEM_FETCHED_LOST, KVMEM_FETCHED_SUSPECT,
    /// KVMEM_FETCHED_NO_KEY or KVMEM_FETCHED_BAD_TAG.
    pub outcome: u32,
    /// Receives 0.
    pub reserved: u32,
}

impl kvmem_disk_tier_value {
    /// Borrows the value.
    fn read(&self) -> Result<TierValue<'_>, CallError> {
        let (priority, ttl) = (hints::priority(self.priority)?, hints::ttl(self.ttl_ms));
        let (key, bytes) = (self.key.key(self.key_bytes)?, self.data.value(self.bytes)?);
        let data_type = hints::data_type(self.data_type)?;
        let hints = TierHints { ttl, priority, data_type, ..TierHints::default() };
        let namespace = self.namespace_name.key(self.namespace_bytes)?;
        Ok(TierValue::new(key, bytes).with_hints(hints).with_namespace(namespace))
    }
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
    tier: Handle<kvmem_disk_tier>,
    values: In<kvmem_disk_tier_value>,
    count: u64,
    out_results: Out<kvmem_status>,
) -> kvmem_status {
    tier.on(|tier| {
        let values = values.list(count, "values")?.iter().map(kvmem_disk_tier_value::read);
        let values: Vec<TierValue<'_>> = values.collect::<Result<_, CallError>>()?;
        let results = tier.store_with(&values);
        // An older value must not be taken for the one that was not stored.
        let failed = values.iter().zip(&results).filter(|(_, result)| result.is_err());
        let failed: Vec<&[u8]> = failed.map(|(value, _)| value.key).collect();
        if !failed.is_empty() {
            // If this fails, too, the tier is read-only, which the status says.
            let _ = tier.remove(&failed);
        }
        let results: Vec<_> = results.into_iter().map(|one| one.map_err(CallError::from)).collect();
        let status = |result: &Result<(), CallError>| {
            result.as_ref().map_or_else(CallError::status, |()| KVMEM_OK)
        };
        // SAFETY: there is a place for each of `count` results, and `store_with` returned one for
        // each value.
        unsafe { out_results.put_all_if_wanted(results.iter().map(status)) };
        results.into_iter().collect()
    })
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
    tier: Handle<kvmem_disk_tier>,
    requests: Out<kvmem_disk_tier_request>,
    count: u64,
) -> kvmem_status {
    tier.on(|tier| fetch(tier, &requests, count))
}

fn fetch(
    tier: &TierSet,
    requests: &Out<kvmem_disk_tier_request>,
    count: u64,
) -> Result<(), CallError> {
    let wanted = requests.as_in().list(count, "requests")?.to_vec();
    check_apart(&wanted)?;
    let mut keys = Vec::with_capacity(wanted.len());
    for one in &wanted {
        keys.push(one.key.key(one.key_bytes)?);
        // SAFETY: promise 1 of the C caller, for `data`; the bytes are only counted.
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
                Fetched::Suspect => KVMEM_FETCHED_SUSPECT,
                Fetched::NoKey => KVMEM_FETCHED_NO_KEY,
                Fetched::BadTag => KVMEM_FETCHED_BAD_TAG,
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
    // SAFETY: the list has `count` elements, of which `results` is a copy.
    unsafe { requests.put_all_if_wanted(results) };
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

/// Returns the length of a value in bytes. This does not count as a use. KVMEM_ERR_NOT_FOUND if the
/// key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_len_of(
    tier: Handle<kvmem_disk_tier>,
    key: In<c_void>,
    key_bytes: u64,
    out_bytes: Out<u64>,
) -> kvmem_status {
    tier.on(|tier| {
        let bytes = out_bytes.get("out_bytes")?;
        bytes.put(tier.len_of(key.key(key_bytes)?).ok_or(CallError::NotFound)?);
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
    tier: Handle<kvmem_disk_tier>,
    keys: In<kvmem_kv_cache_key>,
    count: u64,
    out_removed: Out<u64>,
) -> kvmem_status {
    tier.on(|tier| {
        let removed = tier.remove(&borrow_keys(&keys, count)?)?;
        out_removed.put_if_wanted(removed as u64);
        Ok(())
    })
}

/// Removes all values, durably. Fails as kvmem_disk_tier_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_clear(tier: Handle<kvmem_disk_tier>) -> kvmem_status {
    tier.on(|tier| Ok(tier.clear()?))
}

/// Forgets the keys of a namespace, durably, and removes its values: no copy of their bytes can be
/// decrypted any more, except with an older copy of the first two blocks of the file. Values that
/// are stored in it later have new keys. `out_removed` (may be NULL) receives how many values there
/// were; without a `key_file`, none. Fails as kvmem_disk_tier_remove: the keys may still be there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_forget_namespace(
    tier: Handle<kvmem_disk_tier>,
    namespace_name: In<c_void>,
    namespace_bytes: u64,
    out_removed: Out<u64>,
) -> kvmem_status {
    tier.on(|tier| {
        let removed = tier.forget_namespace(namespace_name.key(namespace_bytes)?)?;
        out_removed.put_if_wanted(removed as u64);
        Ok(())
    })
}

/// Makes all that was stored and removed before durable: a power cut does not undo it. After
/// KVMEM_ERR_SYSTEM the tier stores nothing until it can begin its journal anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_sync(tier: Handle<kvmem_disk_tier>) -> kvmem_status {
    tier.on(|tier| Ok(tier.sync_all()?))
}

/// Writes the index, so that opening the file is fast, and syncs. A tier does so by itself when its
/// journal is full. Fails as kvmem_disk_tier_sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_checkpoint(tier: Handle<kvmem_disk_tier>) -> kvmem_status {
    tier.on(|tier| Ok(tier.checkpoint()?))
}

/// Reads the statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_get_stats(
    tier: Handle<kvmem_disk_tier>,
    out_stats: Out<kvmem_disk_tier_stats>,
) -> kvmem_status {
    tier.on(|tier| out_stats.put("out_stats", kvmem_disk_tier_stats::new(&tier.stats())))
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
    tier: Handle<kvmem_disk_tier>,
    pool: Handle<kvmem_pool>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    tier.on(|tier| Ok(tier.register_memory(pool.get(&promise)?)?))
}

/// Deregisters the memory of a pool. Does nothing if it is not registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_deregister_memory(
    tier: Handle<kvmem_disk_tier>,
    pool: Handle<kvmem_pool>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    tier.on(|tier| {
        tier.deregister_memory(pool.get(&promise)?);
        Ok(())
    })
}

/// Closes a tier. Its file stays open and locked until the caches above it are destroyed, too. The
/// end writes a checkpoint if anything has changed, for at most ten seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_destroy(tier: Owned<kvmem_disk_tier>) -> kvmem_status {
    tier.destroy()
}
