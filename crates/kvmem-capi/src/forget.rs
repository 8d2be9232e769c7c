//! *Forget*: a function of C that tells a lower tier of what was taken out.

use std::ffi::{c_int, c_void};

use crate::call::{on, out};
use crate::fail::Fail;
use crate::kv_cache::{key_at, kvmem_kv_cache};
use crate::status::kvmem_status;

/// Tells a lower tier to forget, and answers 0; or anything else: it may still have what was to be
/// forgotten. Is called once, before the call that it was given to returns, by the same thread,
/// under no lock of the cache's. It returns (no longjmp, no C++ exception).
pub type kvmem_kv_forget_fn = Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>;

/// Takes the value under a key out, as kvmem_kv_remove, where a lower tier has to forget it, too.
/// While `forget` tells it, the key is not leased, so nobody fetches what is to be forgotten.
/// `out_removed` (may be NULL) is whether there was a value: 1 or 0; `forget` is called in both
/// cases.
///
/// KVMEM_NOT_FORGOTTEN: `forget` has failed. The value is out all the same, and the key is not
/// leased any more, until kvmem_kv_clear_with succeeds: so what the lower tier may still have does
/// not come back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_remove_with(
    cache: *const kvmem_kv_cache,
    key: *const c_void,
    key_bytes: u64,
    forget: kvmem_kv_forget_fn,
    user: *mut c_void,
    out_removed: *mut u32,
) -> kvmem_status {
    on(cache, |cache| {
        // SAFETY: the caller's promise.
        let key = unsafe { key_at(key, key_bytes) }?;
        let forget = forget.ok_or(Fail::Null("forget"))?;
        // SAFETY: the caller's promise.
        let found = cache.remove_with(key, || told(unsafe { forget(user) }))?;
        if let Ok(removed) = out(out_removed, "") {
            removed.put(u32::from(found.is_some()));
        }
        Ok(())
    })
}

/// Takes every value out, as kvmem_kv_clear, where a lower tier has to forget all, too: as
/// kvmem_kv_remove_with. Keys that are not leased because something failed before are leased again.
///
/// KVMEM_NOT_FORGOTTEN: `forget` has failed. The values are out all the same, and no key is leased
/// any more, until this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_kv_clear_with(
    cache: *const kvmem_kv_cache,
    forget: kvmem_kv_forget_fn,
    user: *mut c_void,
) -> kvmem_status {
    on(cache, |cache| {
        let forget = forget.ok_or(Fail::Null("forget"))?;
        // SAFETY: the caller's promise.
        cache.clear_with(|| told(unsafe { forget(user) }))
    })
}

/// What the answer of such a function means.
fn told(answer: c_int) -> Result<(), Fail> {
    if answer == 0 { Ok(()) } else { Err(Fail::NotForgotten(answer)) }
}
