//! *Owned objects*: objects of the library that this process must destroy.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use super::abi::{Destroy, Status};
use super::failure::{NixlFailure, check};

/// An object of the library, destroyed when dropped. An error of that has no remedy and is ignored.
///
/// It holds a function of the library, which is loaded before the first object is created and never
/// unloaded.
pub(super) struct OwnedObject<T> {
    raw: NonNull<T>,
    /// `None`: the object is leaked.
    destroy: Option<Destroy<T>>,
}

impl<T> OwnedObject<T> {
    /// Returns the object that `make` creates, with the function that destroys it.
    ///
    /// # Safety
    /// If `make` returns success, it has stored an object or null, and `destroy` destroys such an
    /// object.
    pub(super) unsafe fn create(
        call: &'static str,
        destroy: Destroy<T>,
        make: impl FnOnce(&mut *mut T) -> Status,
    ) -> Result<OwnedObject<T>, NixlFailure> {
        let mut raw = null_mut();
        check(call, make(&mut raw))?;
        // SAFETY: the caller promises that after success `raw` is an object or null, and that
        // `destroy` destroys such an object.
        unsafe { OwnedObject::from_raw(call, destroy, raw) }
    }

    /// Takes ownership of an object that `call` has created.
    ///
    /// # Safety
    /// `raw` is such an object, which no other code owns, or null, and `destroy` destroys it.
    pub(super) unsafe fn from_raw(
        call: &'static str,
        destroy: Destroy<T>,
        raw: *mut T,
    ) -> Result<OwnedObject<T>, NixlFailure> {
        let raw = NonNull::new(raw).ok_or_else(|| NixlFailure::nothing(call))?;
        Ok(OwnedObject { raw, destroy: Some(destroy) })
    }

    /// Returns the object, for calls of the library.
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Returns the object as an untyped pointer.
    pub(super) fn opaque(&self) -> NonNull<c_void> {
        self.raw.cast()
    }

    /// Leaks the object.
    pub(super) fn leak(&mut self) {
        self.destroy = None;
    }
}

impl<T> Drop for OwnedObject<T> {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the caller of `from_raw` promised that `destroy` destroys this object, and
            // that no other code owns it. It is destroyed once, here, and the library is never
            // unloaded.
            let _ = unsafe { destroy(self.raw.as_ptr()) };
        }
    }
}
