//! *Custom registrar*: a consumer of memory that the program implements.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::Errno;
use kvmem::register::{Key, Limits, Registrar, RegistrarError};

use crate::call::{guard, out, read, some_text};
use crate::error::CallError;
use crate::key::kvmem_key;
use crate::registrars::{Registrars, kvmem_registrars};
use crate::status::kvmem_status;
use crate::table::Object;

/// A registrar that the program implements: a NIC's protection domain, a transfer engine.
///
/// Any thread calls the functions, one call at a time for each registrar. They must return (no
/// longjmp, no C++ exception). `register_bytes` and `deregister` return 0, or an errno. On an
/// errno, nothing is pinned, or the key stays valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registrar_callbacks {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// Name of the registrar. Two registrars of one region must have different names. Copied.
    pub name: *const c_char,
    /// Largest number of bytes that one key covers; 0: no limit.
    pub max_key_bytes: u64,
    /// Number of keys that the registrar can give; 0: no limit.
    pub max_keys: u64,
    /// Passed to the functions.
    pub user: *mut c_void,
    /// Pins `bytes` bytes at `data` and writes the key to `out_key`.
    pub register_bytes: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            data: *mut c_void,
            bytes: u64,
            out_key: *mut kvmem_key,
        ) -> c_int,
    >,
    /// Takes a key back.
    pub deregister: Option<unsafe extern "C" fn(user: *mut c_void, key: *const kvmem_key) -> c_int>,
    /// Called once, when nothing is registered with the registrar any more and no object uses it;
    /// may be NULL.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

struct CustomRegistrar {
    name: String,
    callbacks: kvmem_registrar_callbacks,
}

// SAFETY: promise 3 of the C caller: the functions may run, with their user data, on any thread.
unsafe impl Send for CustomRegistrar {}
// SAFETY: shared references only call the functions, and the engine calls those of one registrar
// one at a time, as the header promises to the program.
unsafe impl Sync for CustomRegistrar {}

impl fmt::Debug for CustomRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomRegistrar").field("name", &self.name).finish_non_exhaustive()
    }
}

fn callback_error(call: &'static str, errno: c_int) -> RegistrarError {
    RegistrarError::new(call, Errno::new(errno), "ask the program that implements the registrar")
}

impl Registrar for CustomRegistrar {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        let limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let none = Limits::none(&*self.name);
        Limits {
            max_bytes: limit(self.callbacks.max_key_bytes),
            max_keys: limit(self.callbacks.max_keys),
            ..none
        }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let mut key = kvmem_key { handle: 0, lkey: 0, rkey: 0, has_rkey: 0 };
        let Some(register) = self.callbacks.register_bytes else {
            return Err(callback_error("register_bytes", 0));
        };
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data until `release`. `key` is a local place for the result. The caller of this
        // function promises that the bytes are mapped.
        match unsafe { register(self.callbacks.user, at.as_ptr().cast(), len as u64, &mut key) } {
            0 => Ok(key.into()),
            errno => Err(callback_error("register_bytes", errno)),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let Some(deregister) = self.callbacks.deregister else {
            return Err(callback_error("deregister", 0));
        };
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data until `release`. The key is a local that lives until it returns.
        match unsafe { deregister(self.callbacks.user, &key.into()) } {
            0 => Ok(()),
            errno => Err(callback_error("deregister", errno)),
        }
    }
}

impl Drop for CustomRegistrar {
    fn drop(&mut self) {
        if let Some(release) = self.callbacks.release {
            // SAFETY: promise 3 of the C caller: the function has this type, and the user data are
            // valid until it has run, which happens once, here.
            unsafe { release(self.callbacks.user) }
        }
    }
}

/// Makes a list of one registrar that the program implements. The structure is copied. If the call
/// fails, `release` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_custom(
    callbacks: *const kvmem_registrar_callbacks,
    out_registrars: *mut *mut kvmem_registrars,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_registrars`.
        let made = unsafe { out(out_registrars, "out_registrars") }?;
        // SAFETY: promise 1 of the C caller, for `callbacks`.
        let callbacks = *unsafe { read(callbacks, "callbacks") }?;
        let known = size_of::<kvmem_registrar_callbacks>() as u64;
        if callbacks.struct_size != known {
            return Err(CallError::invalid(format_args!(
                "struct_size is {}, and the structure has {known} bytes: set it to \
                 sizeof(kvmem_registrar_callbacks)",
                callbacks.struct_size
            )));
        }
        // SAFETY: promise 1 of the C caller, for `callbacks.name`.
        let name = unsafe { some_text(callbacks.name, "name") }?.to_owned();
        if name.is_empty() {
            return Err(CallError::invalid(
                "the name is empty: give the registrar a name; keys are requested by it",
            ));
        }
        if callbacks.register_bytes.is_none() {
            return Err(CallError::Null("register_bytes"));
        }
        if callbacks.deregister.is_none() {
            return Err(CallError::Null("deregister"));
        }
        // `release` is set after the allocation: if that fails, the caller keeps its user data.
        let release = callbacks.release;
        let held = CustomRegistrar {
            name,
            callbacks: kvmem_registrar_callbacks { release: None, ..callbacks },
        };
        let mut held = Arc::new(held);
        if let Some(custom) = Arc::get_mut(&mut held) {
            custom.callbacks.release = release;
        }
        made.put(kvmem_registrars::table().insert(Registrars::of(vec![held]))?);
        Ok(())
    })
}
