//! *Evict callback*: a C function that receives evicted values.
//!
//! The function borrows the pin. A function that does nothing with the pin leaks nothing; one that
//! keeps the value clones the pin. If the function releases the borrowed pin by mistake, the handle
//! is found invalid afterwards, and nothing else happens.

use std::ffi::c_void;

use kvmem::cache::Pinned;

use crate::kv_value::{Key, kvmem_kv_cache_pin, kvmem_kv_cache_value, value};
use crate::promise::ObjectPromise;
use crate::table::Object;
use crate::user_data::UserData;

/// Eviction callback: receives each value that is evicted. Values
/// that are removed, replaced or cleared are not passed to it. One exception: if a key's new value
/// does not fit beside the old one, the old one is evicted first.
///
/// `value`, its pin and `key` are valid only during the call; kvmem_kv_cache_pin_clone makes a pin
/// that stays. Until the last pin is released, the bytes stay in use, but the cache does not count
/// them and goes on to evict other values. A program that keeps pins must limit them to a part of
/// the pool.
///
/// Called by the thread that inserts, commits, reserves or calls kvmem_kv_cache_evict_to, by
/// several threads at once. The cache holds no lock during the call. The function may call the
/// cache, except for calls that evict. It must return (no longjmp, no C++ exception).
///
/// To store evicted values and find them again, use a lower tier: kvmem_lower_tier_custom.
pub type kvmem_kv_cache_evict_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        value: *const kvmem_kv_cache_value,
        key: *const c_void,
        key_bytes: u64,
    ),
>;

/// A C function and its user data. The user data are released with the cache.
pub(crate) struct EvictCallback {
    function: unsafe extern "C" fn(*mut c_void, *const kvmem_kv_cache_value, *const c_void, u64),
    pub(crate) user_data: UserData,
}

impl EvictCallback {
    pub(crate) fn new(
        function: kvmem_kv_cache_evict_fn,
        user_data: UserData,
    ) -> Option<EvictCallback> {
        function.map(|function| EvictCallback { function, user_data })
    }

    /// Passes an evicted value to the function, unless no handle is available for its pin.
    pub(crate) fn call(&self, pinned: Pinned<Key>) {
        // Keeps the key alive even if the function releases the pin.
        let kept = pinned.clone();
        let key = kept.key();
        let Ok(lent) = value(pinned) else { return };
        let user = self.user_data.pointer();
        // SAFETY: promise 3 of the C caller: several threads may call the function, which has this
        // type, with its user data while the cache exists. The value and the key live until it
        // returns.
        unsafe { (self.function)(user, &lent, key.as_ptr().cast(), key.len() as u64) };
        // SAFETY: the pin was made above and lent to the function for the call alone (promise 3),
        // so no other call uses it any more.
        let mut promise = unsafe { ObjectPromise::of_caller() };
        // Fails if the function has released the pin.
        drop(kvmem_kv_cache_pin::table().take(&mut promise, lent.pin));
    }
}
