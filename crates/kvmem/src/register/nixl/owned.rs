//! *Owned*: an object of the library that is ours to end.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use super::abi::{Destroy, Status};
use super::failure::{Failure, check};

/// An object of the library. Ended when dropped; what that says cannot be mended.
///
/// It holds a function of the library, which stays loaded from before the first of these is made.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    /// `None`: it stays, for the life of the process.
    destroy: Option<Destroy<T>>,
}

impl<T> Owned<T> {
    /// What `make` puts where it is told to, and how to end it.
    ///
    /// # Safety
    /// What is there after `make` has returned success is an object, or null, and `destroy` ends
    /// it.
    pub(super) unsafe fn made(
        call: &'static str,
        destroy: Destroy<T>,
        make: impl FnOnce(&mut *mut T) -> Status,
    ) -> Result<Owned<T>, Failure> {
        let mut raw = null_mut();
        check(call, make(&mut raw))?;
        // SAFETY: the caller's promise.
        unsafe { Owned::of(call, destroy, raw) }
    }

    /// An object that `call` has made.
    ///
    /// # Safety
    /// It is one, or null, and `destroy` ends it.
    pub(super) unsafe fn of(
        call: &'static str,
        destroy: Destroy<T>,
        raw: *mut T,
    ) -> Result<Owned<T>, Failure> {
        let raw = NonNull::new(raw).ok_or_else(|| Failure::nothing(call))?;
        Ok(Owned { raw, destroy: Some(destroy) })
    }

    /// The object, for calls of the library.
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// The object, for whoever is told only that it is one.
    pub(super) fn opaque(&self) -> NonNull<c_void> {
        self.raw.cast()
    }

    /// Lets it be, for the life of the process.
    pub(super) fn abandon(&mut self) {
        self.destroy = None;
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: ours, and ended once.
            let _ = unsafe { destroy(self.raw.as_ptr()) };
        }
    }
}
