//! *Cancel*: a token that ends long work early.

use kvmem::arena::CancelToken;

use crate::call::{destroy, guard, on, out};
use crate::fork::Home;
use crate::status::kvmem_status;
use crate::table::{Object, object};

/// A token that ends populating, registering or building early. Owned by the caller:
/// kvmem_cancel_destroy. What it was given to keeps what it needs of it, so it may be destroyed at
/// any time; then it cannot be used any more. Any thread.
pub struct kvmem_cancel {
    _opaque: [u8; 0],
}

object!(kvmem_cancel, CancelToken, CancelToken, |_| Home::Heap);

/// Makes a token that has not been used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_create(out_cancel: *mut *mut kvmem_cancel) -> kvmem_status {
    guard(|| {
        let made = out(out_cancel, "out_cancel")?;
        made.put(kvmem_cancel::table().insert(CancelToken::new())?);
        Ok(())
    })
}

/// Uses a token: what it was given to ends at its next chunk with KVMEM_CANCELLED. It cannot be
/// taken back. Any thread, also while the work goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_use(cancel: *const kvmem_cancel) -> kvmem_status {
    on(cancel, |cancel| {
        cancel.cancel();
        Ok(())
    })
}

/// Destroys a token. What it was given to goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_cancel_destroy(cancel: *mut kvmem_cancel) -> kvmem_status {
    destroy(cancel)
}

/// The token of an option; NULL: none.
pub(crate) fn token(cancel: *const kvmem_cancel) -> Result<Option<CancelToken>, crate::fail::Fail> {
    if cancel.is_null() { Ok(None) } else { kvmem_cancel::table().get(cancel).cloned().map(Some) }
}
