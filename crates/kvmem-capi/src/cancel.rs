//! *Cancel*: a token that ends long work early.

use kvmem::arena::CancelToken;

use crate::call::{destroy, guard, on, out};
use crate::fork::ForkScope;
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// A token that ends populating, registering or building early. Owned by the caller:
/// kvmem_cancel_destroy. Work that was given the token keeps its own reference, so the token may be
/// destroyed at any time; after that it can no longer be used to cancel. Any thread.
pub struct kvmem_cancel {
    _opaque: [u8; 0],
}

object!(kvmem_cancel, CancelToken, CancelToken, |_| ForkScope::Copied);

/// Makes a token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_create(out_cancel: *mut *mut kvmem_cancel) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_cancel`.
        let made = unsafe { out(out_cancel, "out_cancel") }?;
        made.put(kvmem_cancel::table().insert(CancelToken::new())?);
        Ok(())
    })
}

/// Requests cancellation: work that was given the token ends at its next chunk with
/// KVMEM_ERR_CANCELLED. A request cannot be undone. Any thread, also while the work runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_request(cancel: *const kvmem_cancel) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, cancel, |cancel| {
        cancel.cancel();
        Ok(())
    })
}

/// Destroys a token. Work that was given the token continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_destroy(cancel: *mut kvmem_cancel) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, cancel)
}

/// Returns the token of an option; `None` if the option is NULL.
pub(crate) fn token(
    promise: &ObjectPromise,
    cancel: *const kvmem_cancel,
) -> Result<Option<CancelToken>, crate::error::CallError> {
    match cancel.is_null() {
        true => Ok(None),
        false => kvmem_cancel::table().get(promise, cancel).cloned().map(Some),
    }
}
