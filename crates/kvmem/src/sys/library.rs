//! *Library*: a shared library that is loaded at run time.
//!
//! The loader's rules apply: a bare name is looked up in the usual folders and those of
//! `LD_LIBRARY_PATH`, and a path is used as it is. All functions are bound at once, so a missing
//! function of a dependency is found here and not in the middle of a transfer. None of the
//! library's names become visible to other libraries.
//!
//! The library is unloaded when the last [`Library`] is dropped. Code that keeps functions of it
//! also keeps the [`Library`].

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::mem;
use std::path::Path;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::call::Call;
use super::gate::gate;

/// A loaded library. Errors are the loader's texts, because the loader has no error numbers.
#[derive(Debug)]
pub(crate) struct Library(Handle);

impl Library {
    /// Loads a library.
    ///
    /// # Safety
    /// The library's code that runs when it is loaded and unloaded is harmless.
    pub(crate) unsafe fn open(path: &Path) -> Result<Library, String> {
        gate(Call::OpenLibrary).map_err(|errno| errno.to_string())?;
        // SAFETY: loading runs the library's code, which is harmless by this function's condition.
        let opened = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        opened.map(Library).map_err(|error| message(&error))
    }

    /// Returns a function of the library, in its default version.
    ///
    /// # Safety
    /// `F` is the function's type, an `extern "C" fn`, and the function is not called after the
    /// library is unloaded.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        gate(Call::Symbol).map_err(|errno| errno.to_string())?;
        // SAFETY: only the address is taken; the type is not used.
        let found = unsafe { self.0.get::<F>(name) }.map_err(|error| message(&error))?;
        let address = found.into_raw();
        if address.is_null() {
            return Err("the symbol exists, but its address is null".to_owned());
        }
        // SAFETY: by this function's condition `F` is the type of this function. The assertion
        // checked that it has the size of a pointer, and a function pointer may be any address of
        // a function except null.
        Ok(unsafe { mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Keeps the library loaded until the process ends.
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

/// Returns the loader's text. The error itself only names the loader's function.
fn message(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
