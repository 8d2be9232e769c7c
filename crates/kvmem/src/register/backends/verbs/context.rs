//! *Context*: an open device.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{IbvContext, IbvDevice, IbvDeviceAttr, IbvPd, VerbsAbi};
use crate::arena::Errno;

/// A failed call of the library: its name and its error number.
pub(super) type VerbsFailure = (&'static str, Errno);

/// Returns the `errno` of a function that returned `NULL`; `EIO` if it set none.
pub(super) fn last_errno() -> Errno {
    match Errno::last() {
        none if none.number() == 0 => Errno::EIO,
        errno => errno,
    }
}

/// Converts the result of functions that return an error number. Some drivers return −1 and set
/// `errno`, or return the number negated.
pub(super) fn check_errno(call: &'static str, returned: c_int) -> Result<(), VerbsFailure> {
    match returned {
        0 => Ok(()),
        -1 => Err((call, last_errno())),
        errno => Err((call, Errno::new(errno.saturating_abs()))),
    }
}

/// Returns a device's limits. Queried once: they do not change.
///
/// # Safety
/// `context` is a device that was opened by the library of `abi` and is not closed.
pub(super) unsafe fn query(
    abi: &VerbsAbi,
    context: NonNull<IbvContext>,
) -> Result<IbvDeviceAttr, VerbsFailure> {
    let mut attr = IbvDeviceAttr::EMPTY;
    Errno::clear();
    // SAFETY: the caller promises that the device is open. `attr` is an initialized structure of
    // the header's layout, and is borrowed by this call alone.
    check_errno("ibv_query_device", unsafe { (abi.query_device)(context.as_ptr(), &mut attr) })?;
    Ok(attr)
}

/// A device opened by this module. Closed when dropped.
pub(super) struct OpenDevice {
    abi: Arc<VerbsAbi>,
    raw: NonNull<IbvContext>,
}

impl OpenDevice {
    /// Opens a device.
    ///
    /// # Safety
    /// `device` is on a list of this library that is not freed.
    pub(super) unsafe fn open(
        abi: &Arc<VerbsAbi>,
        device: NonNull<IbvDevice>,
    ) -> Result<OpenDevice, VerbsFailure> {
        Errno::clear();
        // SAFETY: the caller promises that `device` is on a list of this library that is not freed,
        // so it points to a device.
        let raw = NonNull::new(unsafe { (abi.open_device)(device.as_ptr()) });
        let raw = raw.ok_or_else(|| ("ibv_open_device", last_errno()))?;
        Ok(OpenDevice { abi: Arc::clone(abi), raw })
    }

    /// Allocates a protection domain on the device.
    pub(super) fn alloc_pd(&self) -> Result<NonNull<IbvPd>, VerbsFailure> {
        Errno::clear();
        // SAFETY: `open` has opened the device, and only `drop` closes it.
        let pd = NonNull::new(unsafe { (self.abi.alloc_pd)(self.raw.as_ptr()) });
        pd.ok_or_else(|| ("ibv_alloc_pd", last_errno()))
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: `open` has opened the device. The only object on it is the domain that
        // `Domain::new` allocates, and `Domain` drops this value only after that is freed. An error
        // has no remedy here: the descriptor is closed in any case.
        let _ = unsafe { (self.abi.close_device)(self.raw.as_ptr()) };
    }
}
