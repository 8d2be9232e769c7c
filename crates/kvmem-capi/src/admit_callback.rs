//! *Admit callback*: a C function that chooses the evicted values that are written to a tier.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use kvmem_tier::AdmissionPolicy;

use crate::user_data::UserData;

/// Chooses the evicted values that are written to a disk tier: returns 1 to write the value, 0 to
/// drop it. An older value of a key that is dropped is removed from the tier.
///
/// Called by the threads that evict or write behind a cache, by several at once, while the order of
/// the key is locked. The key and the value are valid only during the call. The function must be
/// short, must not call the cache or the tier, and must return (no longjmp, no C++ exception).
pub type kvmem_disk_tier_admit_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        key: *const c_void,
        key_bytes: u64,
        value: *const c_void,
        value_bytes: u64,
    ) -> c_int,
>;

/// An admit callback as the policy of a tier. The user data are released with the tier.
pub(crate) struct AdmitPolicy {
    function: unsafe extern "C" fn(*mut c_void, *const c_void, u64, *const c_void, u64) -> c_int,
    pub(crate) user_data: Arc<UserData>,
}

impl AdmitPolicy {
    pub(crate) fn new(
        function: kvmem_disk_tier_admit_fn,
        user_data: UserData,
    ) -> Option<AdmitPolicy> {
        function.map(|function| AdmitPolicy { function, user_data: Arc::new(user_data) })
    }
}

impl AdmissionPolicy for AdmitPolicy {
    fn admits(&self, key: &[u8], value: &[u8]) -> bool {
        let (key_bytes, value_bytes) = (key.len() as u64, value.len() as u64);
        let (key, value) = (key.as_ptr().cast(), value.as_ptr().cast());
        let user = self.user_data.pointer();
        // SAFETY: promise 3 of the C caller: several threads may call the function, which has this
        // type, with its user data while the tier exists. The key and the value live until it
        // returns.
        unsafe { (self.function)(user, key, key_bytes, value, value_bytes) != 0 }
    }
}
