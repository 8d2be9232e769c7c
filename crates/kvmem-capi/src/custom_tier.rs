//! *Custom tier*: a lower tier that the program implements.
//!
//! The program's functions get what [`Tier`] gets: many values a call, and the keys as bytes. The
//! cache does the rest: it orders changes of a key, and drops a fetched value that has become old
//! meanwhile.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};

use crate::argument::{In, Out};
use crate::call::guard;
use crate::error::CallError;
use crate::hints::kvmem_value_hints;
use crate::kv_value::kvmem_kv_cache_key;
use crate::lower_tier::{SharedLowerTier, kvmem_lower_tier};
use crate::options::check_struct_size;
use crate::status::kvmem_status;
use crate::user_data::UserData;

/// The tier may still have an older value under the key. The cache does not fetch the key any more
/// until it is cleared.
pub const KVMEM_TIER_FAILED: u32 = 0;
/// The tier has the value.
pub const KVMEM_TIER_STORED: u32 = 1;
/// The tier has no value under the key: it is full, or does not want the value, or the value is
/// superseded.
pub const KVMEM_TIER_NOT_STORED: u32 = 2;

/// A value that a cache passes to a tier of the program. Valid during the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_tier_value {
    /// The bytes of the key.
    pub key: *const c_void,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// The bytes of the value.
    pub data: *const c_void,
    /// Number of bytes of the value.
    pub bytes: u64,
    /// For kvmem_tier_value_is_superseded.
    pub value: *const c_void,
    /// Its hints, with what is left of its time to live.
    pub hints: kvmem_value_hints,
}

/// A value that a cache wants from a tier of the program. Valid during the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_tier_read {
    /// The bytes of the key.
    pub key: *const c_void,
    /// Number of bytes of the key.
    pub key_bytes: u64,
    /// Memory for the value.
    pub data: *mut c_void,
    /// Number of bytes of the memory: as many as `ask` said.
    pub bytes: u64,
}

/// A lower tier that the program implements.
///
/// Any thread calls the functions, several at once. The cache holds no lock during a call. They
/// must return (no longjmp, no C++ exception). `remove` and `clear` return 0; any other number
/// means that the tier may still have values that it was to remove.
///
/// A removal and a store of the same key may come from two threads at once. The tier orders them
/// by a lock of its own, and under this lock calls kvmem_tier_value_is_superseded: a superseded
/// value is not stored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_tier_callbacks {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// Passed to the functions.
    pub user: *mut c_void,
    /// Stores `count` values, and replaces those that are there. Writes the outcome of each:
    /// KVMEM_TIER_STORED, KVMEM_TIER_NOT_STORED or KVMEM_TIER_FAILED, which is there before. A
    /// value that is not stored leaves no older one behind.
    pub store: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            values: *const kvmem_tier_value,
            count: u64,
            out_outcomes: *mut u32,
        ),
    >,
    /// Writes the number of bytes of each key's value; UINT64_MAX, which is there before: the tier
    /// has none. May wait, for a network.
    pub ask: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            keys: *const kvmem_kv_cache_key,
            count: u64,
            out_bytes: *mut u64,
        ),
    >,
    /// Reads `count` values into memory. Writes 1 for each whose bytes are whole and right; 0 is
    /// there before. A value may have gone, or have another length, since `ask`. Of the values of a
    /// call, the last one counts as used last.
    pub fetch: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            reads: *const kvmem_tier_read,
            count: u64,
            out_found: *mut u32,
        ),
    >,
    /// Removes the values of keys.
    pub remove: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            keys: *const kvmem_kv_cache_key,
            count: u64,
        ) -> c_int,
    >,
    /// Removes every value.
    pub clear: Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>,
    /// Called once, when no lower tier and no cache uses the functions any more; may be NULL. Not
    /// called if the tier could not be made.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// The program's functions, all of them present.
struct CustomTier {
    user_data: UserData,
    store: unsafe extern "C" fn(*mut c_void, *const kvmem_tier_value, u64, *mut u32),
    ask: unsafe extern "C" fn(*mut c_void, *const kvmem_kv_cache_key, u64, *mut u64),
    fetch: unsafe extern "C" fn(*mut c_void, *const kvmem_tier_read, u64, *mut u32),
    remove: unsafe extern "C" fn(*mut c_void, *const kvmem_kv_cache_key, u64) -> c_int,
    clear: unsafe extern "C" fn(*mut c_void) -> c_int,
}

fn keys_of(keys: &[&[u8]]) -> Vec<kvmem_kv_cache_key> {
    let key = |key: &&[u8]| kvmem_kv_cache_key { key: In::lent(key), key_bytes: key.len() as u64 };
    keys.iter().map(key).collect()
}

impl CustomTier {
    fn from_callbacks(callbacks: &kvmem_tier_callbacks) -> Result<CustomTier, CallError> {
        Ok(CustomTier {
            user_data: UserData::new(callbacks.user, callbacks.release),
            store: callbacks.store.ok_or(CallError::Null("store"))?,
            ask: callbacks.ask.ok_or(CallError::Null("ask"))?,
            fetch: callbacks.fetch.ok_or(CallError::Null("fetch"))?,
            remove: callbacks.remove.ok_or(CallError::Null("remove"))?,
            clear: callbacks.clear.ok_or(CallError::Null("clear"))?,
        })
    }
}

/// The values of a call of `store`: the address of the first, and their number.
type Values = (*const TierValue<'static>, usize);

thread_local! {
    /// The values of the call of `store` that this thread is in.
    static STORING: Cell<Values> = const { Cell::new((std::ptr::null(), 0)) };
}

/// Calls `store` with these values as those of this thread.
fn while_storing(values: &[TierValue<'_>], store: impl FnOnce()) {
    // A store may evict, and so call the store of another cache.
    let outer = STORING.replace((values.as_ptr().cast(), values.len()));
    store();
    STORING.set(outer);
}

/// Returns whether a value that this thread's call of `store` got is superseded; `None` if it got
/// none at this address.
fn is_superseded(value: *const c_void) -> Option<bool> {
    let (first, count) = STORING.get();
    let value = (0..count).map(|index| first.wrapping_add(index)).find(|at| at.cast() == value)?;
    // SAFETY: it is the address of an element of the list that `while_storing` borrows until its
    // `store` returns, and this thread is in that call.
    Some(unsafe { &*value }.is_superseded())
}

/// Converts the return value of `remove` or `clear`.
fn removed(call: &'static str, answer: c_int) -> Result<(), BoxError> {
    match answer {
        0 => Ok(()),
        answer => Err(format!("`{call}` of the program's tier returned {answer}").into()),
    }
}

impl Tier for CustomTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let value = |value: &TierValue<'_>| kvmem_tier_value {
            key: value.key.as_ptr().cast(),
            key_bytes: value.key.len() as u64,
            data: value.bytes.as_ptr().cast(),
            bytes: value.bytes.len() as u64,
            value: std::ptr::from_ref(value).cast(),
            hints: value.hints.into(),
        };
        let passed: Vec<kvmem_tier_value> = values.iter().map(value).collect();
        let mut outcomes = vec![KVMEM_TIER_FAILED; values.len()];
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data until `release`. The lists are locals with as many elements as values.
        while_storing(values, || unsafe {
            (self.store)(
                self.user_data.pointer(),
                passed.as_ptr(),
                passed.len() as u64,
                outcomes.as_mut_ptr(),
            );
        });
        let outcome = |outcome: u32| match outcome {
            KVMEM_TIER_STORED => Ok(StoreOutcome::Stored),
            KVMEM_TIER_NOT_STORED => Ok(StoreOutcome::NotStored),
            other => Err(format!("`store` of the program's tier wrote {other}").into()),
        };
        outcomes.into_iter().map(outcome).collect()
    }

    /// The program may wait for anything, so only [`ask`](Tier::ask) calls it.
    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        vec![Lookup::Unknown; keys.len()]
    }

    fn knows_all(&self) -> bool {
        false
    }

    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let keys = keys_of(keys);
        let mut bytes = vec![u64::MAX; keys.len()];
        // SAFETY: as in `store`.
        unsafe {
            (self.ask)(
                self.user_data.pointer(),
                keys.as_ptr(),
                keys.len() as u64,
                bytes.as_mut_ptr(),
            )
        };
        bytes.into_iter().map(|bytes| (bytes != u64::MAX).then_some(bytes)).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let read = |read: &mut TierRead<'_>| kvmem_tier_read {
            key: read.key.as_ptr().cast(),
            key_bytes: read.key.len() as u64,
            data: read.into.as_mut_ptr().cast(),
            bytes: read.into.len() as u64,
        };
        let passed: Vec<kvmem_tier_read> = reads.iter_mut().map(read).collect();
        let mut found = vec![0; passed.len()];
        // SAFETY: as in `store`; the memory of each read is borrowed by this call alone.
        unsafe {
            (self.fetch)(
                self.user_data.pointer(),
                passed.as_ptr(),
                passed.len() as u64,
                found.as_mut_ptr(),
            );
        }
        found.into_iter().map(|found| (found == 1).then(TierHit::default)).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let keys = keys_of(keys);
        // SAFETY: as in `store`.
        removed("remove", unsafe {
            (self.remove)(self.user_data.pointer(), keys.as_ptr(), keys.len() as u64)
        })
    }

    fn clear(&self) -> Result<(), BoxError> {
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data until `release`.
        removed("clear", unsafe { (self.clear)(self.user_data.pointer()) })
    }
}

/// Makes a lower tier of functions of the program. The structure is copied. If the call fails,
/// `release` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_custom(
    callbacks: In<kvmem_tier_callbacks>,
    out_lower_tier: Out<*mut kvmem_lower_tier>,
) -> kvmem_status {
    guard(|| {
        let made = out_lower_tier.get("out_lower_tier")?;
        let callbacks = callbacks.get("callbacks")?;
        check_struct_size::<kvmem_tier_callbacks>(callbacks.struct_size)?;
        let tier = Arc::new(CustomTier::from_callbacks(callbacks)?);
        let shared: SharedLowerTier = Arc::clone(&tier) as _;
        made.insert(shared)?;
        tier.user_data.own();
        Ok(())
    })
}

/// Returns whether the key of a value has received another value since, or was removed or cleared:
/// 1 or 0. KVMEM_ERR_INVALID_ARGUMENT if the calling thread is not in a call of `store` that got
/// the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_value_is_superseded(
    value: In<kvmem_tier_value>,
    out_superseded: Out<u32>,
) -> kvmem_status {
    guard(|| {
        let superseded = out_superseded.get("out_superseded")?;
        let passed = value.get("value")?;
        let is_superseded = is_superseded(passed.value).ok_or_else(|| {
            CallError::invalid(
                "this thread is in no call of `store` that got the value: call it there, with an \
                 element of `values`",
            )
        })?;
        superseded.put(u32::from(is_superseded));
        Ok(())
    })
}
