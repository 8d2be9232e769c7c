//! *Library*: a shared library, loaded while the process runs.
//!
//! It is found by the loader's rules: a bare name in the usual folders and those of
//! `LD_LIBRARY_PATH`, a path as it is. All of its functions are bound at once, so one that a
//! dependency lacks is found out here and not in the middle of a transfer; none of its names become
//! visible to other libraries.
//!
//! The library is unloaded when the last [`Library`] that holds it is dropped. Whoever keeps
//! functions of it keeps the [`Library`] beside them.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::mem;
use std::path::Path;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::{Call, gate};

/// A library that is loaded as long as this lives. What goes wrong is said by the loader in words,
/// so that is the error.
#[derive(Debug)]
pub(crate) struct Library(Handle);

impl Library {
    /// Loads a library.
    ///
    /// # Safety
    /// What runs when it is loaded and unloaded does no harm.
    pub(crate) unsafe fn open(path: &Path) -> Result<Library, String> {
        gate(Call::OpenLibrary).map_err(|errno| errno.to_string())?;
        // SAFETY: the caller's promise.
        let opened = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        opened.map(Library).map_err(|error| said(&error))
    }

    /// A function of it, in its default version.
    ///
    /// # Safety
    /// `F` is the function's type, an `extern "C" fn`, and the function is not called after the
    /// library is gone.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        gate(Call::Symbol).map_err(|errno| errno.to_string())?;
        // SAFETY: the type is not made use of: only the address is taken.
        let found = unsafe { self.0.get::<F>(name) }.map_err(|error| said(&error))?;
        let address = found.into_raw();
        if address.is_null() {
            return Err("it is there, but nowhere".to_owned());
        }
        // SAFETY: `F` is a function pointer of the same size, the caller promises, and the address
        // is not null.
        Ok(unsafe { mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Keeps the library loaded for the life of the process.
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

/// What the loader says. The error itself only tells which of its functions that was.
fn said(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
