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
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::call::Call;
use super::gate::gate;

/// A loaded library. Errors contain the loader's texts, because the loader has no error numbers.
#[derive(Debug)]
pub(crate) struct Library {
    handle: Handle,
    /// The path that it was loaded from, for errors.
    path: PathBuf,
}

impl Library {
    /// Loads a library.
    ///
    /// # Safety
    /// The library's code that runs when it is loaded and unloaded is harmless.
    pub(crate) unsafe fn open(path: &Path) -> Result<Library, String> {
        let opened = gate(Call::OpenLibrary).map_err(|errno| errno.to_string()).and_then(|()| {
            // SAFETY: loading runs the library's code, which is harmless by this function's
            // condition.
            let opened = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
            opened.map_err(|error| message(&error))
        });
        match opened {
            Ok(handle) => Ok(Library { handle, path: path.to_owned() }),
            Err(reason) => Err(format!("no library: {reason}")),
        }
    }

    /// Returns a function of the library, in its default version.
    ///
    /// # Safety
    /// `F` is the function's type, an `extern "C" fn`, and the function is not called after the
    /// library is unloaded.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address(name).map_err(|reason| {
            format!("{} has no function {}: {reason}", self.path.display(), name.to_string_lossy())
        })?;
        // SAFETY: by this function's condition `F` is the type of this function. The assertion
        // checked that it has the size of a pointer, and a function pointer may be any address of
        // a function except null, which `address` excludes.
        Ok(unsafe { mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Returns the address behind a name, which is not null.
    fn address(&self, name: &CStr) -> Result<*mut c_void, String> {
        gate(Call::Symbol).map_err(|errno| errno.to_string())?;
        // SAFETY: only the address is taken; the type is not used.
        let found = unsafe { self.handle.get::<*mut c_void>(name) };
        let address = found.map_err(|error| message(&error))?.into_raw();
        if address.is_null() {
            return Err("the symbol exists, but its address is null".to_owned());
        }
        Ok(address)
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
