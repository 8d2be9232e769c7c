//! *Cancel*: a token that ends long work early.

use kvmem::arena::CancelToken;

use crate::argument::{Handle, Out, Owned};
use crate::call::guard;
use crate::fork::ForkScope;
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::object;

/// A token that ends populating, registering or building early. Owned by the caller:
/// kvmem_cancel_destroy. Work that was given the token keeps its own reference, so the token may be
/// destroyed at any time; after that it can no longer be used to cancel. Any thread.
pub struct kvmem_cancel {
    _opaque: [u8; 0],
}

object!(kvmem_cancel, CancelToken, |_| ForkScope::Copied);

/// Makes a token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_create(out_cancel: Out<*mut kvmem_cancel>) -> kvmem_status {
    guard(|| {
        let made = out_cancel.get("out_cancel")?;
        made.insert(CancelToken::new())
    })
}

/// Requests cancellation: work that was given the token ends at its next chunk with
/// KVMEM_ERR_CANCELLED. A request cannot be undone. Any thread, also while the work runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_request(cancel: Handle<kvmem_cancel>) -> kvmem_status {
    cancel.on(|cancel| {
        cancel.cancel();
        Ok(())
    })
}

/// Destroys a token. Work that was given the token continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_destroy(cancel: Owned<kvmem_cancel>) -> kvmem_status {
    cancel.destroy()
}

/// Returns the token of an option; `None` if the option is NULL.
pub(crate) fn token(
    promise: &ObjectPromise,
    cancel: &Handle<kvmem_cancel>,
) -> Result<Option<CancelToken>, crate::error::CallError> {
    match cancel.is_null() {
        true => Ok(None),
        false => cancel.get(promise).cloned().map(Some),
    }
}
