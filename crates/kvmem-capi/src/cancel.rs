//! *Cancel*: a token that ends long work early.

use kvmem::arena::CancelToken;

use crate::call::{destroy, guard, on, out};
use crate::fork::ForkScope;
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
        let made = out(out_cancel, "out_cancel")?;
        made.put(kvmem_cancel::table().insert(CancelToken::new())?);
        Ok(())
    })
}

/// Requests cancellation: work that was given the token ends at its next chunk with
/// KVMEM_ERR_CANCELLED. A request cannot be undone. Any thread, also while the work runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_request(cancel: *const kvmem_cancel) -> kvmem_status {
    on(cancel, |cancel| {
        cancel.cancel();
        Ok(())
    })
}

/// Destroys a token. Work that was given the token continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_destroy(cancel: *mut kvmem_cancel) -> kvmem_status {
    destroy(cancel)
}

/// Returns the token of an option; `None` if the option is NULL.
pub(crate) fn token(
    cancel: *const kvmem_cancel,
) -> Result<Option<CancelToken>, crate::error::CallError> {
    if cancel.is_null() { Ok(None) } else { kvmem_cancel::table().get(cancel).cloned().map(Some) }
}
