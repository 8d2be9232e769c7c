//! *Admit callback*: a C function that chooses the evicted values that are written to a tier.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvmem_tier::AdmissionPolicy;

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

/// A C function and its user data. The user data are released with the tier.
pub(crate) struct AdmitCallback {
    function: unsafe extern "C" fn(*mut c_void, *const c_void, u64, *const c_void, u64) -> c_int,
    user: *mut c_void,
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Whether the tier exists. Before that, the caller owns the user data.
    owned: AtomicBool,
}

// SAFETY: promise 3 of the C caller: both functions may run, with the user data, on any thread.
unsafe impl Send for AdmitCallback {}
// SAFETY: promise 3 of the C caller: several threads may call the first function at once. The
// second one runs in `drop`, which no shared reference survives.
unsafe impl Sync for AdmitCallback {}

impl AdmitCallback {
    pub(crate) fn new(
        function: kvmem_disk_tier_admit_fn,
        user: *mut c_void,
        release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    ) -> Option<AdmitCallback> {
        let function = function?;
        Some(AdmitCallback { function, user, release, owned: AtomicBool::new(false) })
    }

    /// Takes ownership of the user data: they are released on drop.
    pub(crate) fn own_user_data(&self) {
        // Relaxed: dropping the last reference acquires all earlier writes through the others.
        self.owned.store(true, Ordering::Relaxed);
    }
}

/// An admit callback as the policy of a tier.
pub(crate) struct AdmitPolicy(pub(crate) Arc<AdmitCallback>);

impl AdmissionPolicy for AdmitPolicy {
    fn admits(&self, key: &[u8], value: &[u8]) -> bool {
        let AdmitCallback { function, user, .. } = *self.0;
        let (key_bytes, value_bytes) = (key.len() as u64, value.len() as u64);
        let (key, value) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data while the tier exists. The key and the value live until it returns.
        unsafe { function(user, key, key_bytes, value, value_bytes) != 0 }
    }
}

impl Drop for AdmitCallback {
    fn drop(&mut self) {
        // Relaxed: dropping the last reference acquires the write in `own_user_data`.
        if let Some(release) = self.release.filter(|_| self.owned.load(Ordering::Relaxed)) {
            // SAFETY: promise 3 of the C caller: the function has this type, and the user data are
            // valid until it has run, which happens once, here.
            unsafe { release(self.user) }
        }
    }
}
