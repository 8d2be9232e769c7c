//! *Context*: an open device.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{self, Abi, Device, DeviceAttr, Pd};
use crate::arena::Errno;

/// A call of the library that failed: its name and why.
pub(super) type Failed = (&'static str, Errno);

/// What functions that return `NULL` and set `errno` have left there.
pub(super) fn left_behind() -> Errno {
    match Errno::last() {
        none if none.number() == 0 => Errno::EIO,
        errno => errno,
    }
}

/// The result of functions that return an error number. Some drivers return −1 and set `errno`, or
/// return it negative.
pub(super) fn number(call: &'static str, returned: c_int) -> Result<(), Failed> {
    match returned {
        0 => Ok(()),
        -1 => Err((call, left_behind())),
        errno => Err((call, Errno::new(errno.saturating_abs()))),
    }
}

/// What a device can do. Asked once: it does not change.
pub(super) fn query(abi: &Abi, context: NonNull<abi::Context>) -> Result<DeviceAttr, Failed> {
    let mut attr = DeviceAttr::EMPTY;
    Errno::clear();
    // SAFETY: an open device, and a structure of the type that the call fills.
    number("ibv_query_device", unsafe { (abi.query_device)(context.as_ptr(), &mut attr) })?;
    Ok(attr)
}

/// A device that we have opened. Closed when dropped.
pub(super) struct Context {
    abi: Arc<Abi>,
    raw: NonNull<abi::Context>,
}

impl Context {
    /// Opens a device.
    ///
    /// # Safety
    /// It is on a list of this library that lives.
    pub(super) unsafe fn open(abi: &Arc<Abi>, device: NonNull<Device>) -> Result<Context, Failed> {
        Errno::clear();
        // SAFETY: the caller's promise.
        let raw = NonNull::new(unsafe { (abi.open_device)(device.as_ptr()) });
        let raw = raw.ok_or_else(|| ("ibv_open_device", left_behind()))?;
        Ok(Context { abi: Arc::clone(abi), raw })
    }

    /// Makes a protection domain on it.
    pub(super) fn alloc_pd(&self) -> Result<NonNull<Pd>, Failed> {
        Errno::clear();
        // SAFETY: the device is open.
        let pd = NonNull::new(unsafe { (self.abi.alloc_pd)(self.raw.as_ptr()) });
        pd.ok_or_else(|| ("ibv_alloc_pd", left_behind()))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us, and all that was made on it is gone. What it says cannot be mended:
        // the descriptor is closed whatever else happened.
        let _ = unsafe { (self.abi.close_device)(self.raw.as_ptr()) };
    }
}
