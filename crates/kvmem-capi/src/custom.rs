//! *Custom registrar*: a consumer of memory that the program brings itself.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::Errno;
use kvmem::register::{Key, Limits, Registrar, RegistrarError};

use crate::call::{guard, out, read, some_text};
use crate::fail::Fail;
use crate::key::kvmem_key;
use crate::registrars::{Registrars, kvmem_registrars};
use crate::status::kvmem_status;
use crate::table::Object;

/// A registrar of the program's own: a NIC's protection domain, a transfer engine.
///
/// Calls come from any thread, for one registrar one at a time. They return (no longjmp, no C++
/// exception). `register_bytes` and `deregister` return 0, or an errno: then nothing is pinned, or
/// the key stands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registrar_callbacks {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// What it is called; no two that register one region are called the same. Copied.
    pub name: *const c_char,
    /// The most bytes that one key can cover; 0: no limit.
    pub max_key_bytes: u64,
    /// How many keys it can give; 0: no limit.
    pub max_keys: u64,
    /// Given to the functions.
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
    /// Is called once, when nothing is registered with it any more and it is in nobody's use; may
    /// be NULL.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

struct Custom {
    name: String,
    callbacks: kvmem_registrar_callbacks,
}

// SAFETY: the header says that calls come from any thread.
unsafe impl Send for Custom {}
// SAFETY: and for one registrar one at a time, as the library promises.
unsafe impl Sync for Custom {}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("name", &self.name).finish_non_exhaustive()
    }
}

fn refusal(call: &'static str, errno: c_int) -> RegistrarError {
    RegistrarError::new(call, Errno::new(errno), "ask the program that brought the registrar")
}

impl Registrar for Custom {
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
            return Err(refusal("register_bytes", 0));
        };
        // SAFETY: the caller of C has promised that it can be called.
        match unsafe { register(self.callbacks.user, at.as_ptr().cast(), len as u64, &mut key) } {
            0 => Ok(key.into()),
            errno => Err(refusal("register_bytes", errno)),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let Some(deregister) = self.callbacks.deregister else {
            return Err(refusal("deregister", 0));
        };
        // SAFETY: as above.
        match unsafe { deregister(self.callbacks.user, &key.into()) } {
            0 => Ok(()),
            errno => Err(refusal("deregister", errno)),
        }
    }
}

impl Drop for Custom {
    fn drop(&mut self) {
        if let Some(release) = self.callbacks.release {
            // SAFETY: as above.
            unsafe { release(self.callbacks.user) }
        }
    }
}

/// A registrar that the program brings itself. The structure is copied. If the call fails `release`
/// is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_custom(
    callbacks: *const kvmem_registrar_callbacks,
    out_registrars: *mut *mut kvmem_registrars,
) -> kvmem_status {
    guard(|| {
        let made = out(out_registrars, "out_registrars")?;
        // SAFETY: the caller's promise.
        let callbacks = *unsafe { read(callbacks, "callbacks") }?;
        let known = size_of::<kvmem_registrar_callbacks>() as u64;
        if callbacks.struct_size != known {
            return Err(Fail::invalid(format_args!(
                "struct_size is {}, and {known} here: say sizeof(kvmem_registrar_callbacks)",
                callbacks.struct_size
            )));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { some_text(callbacks.name, "name") }?.to_owned();
        if name.is_empty() {
            return Err(Fail::invalid("a registrar needs a name, by which keys are asked for"));
        }
        if callbacks.register_bytes.is_none() {
            return Err(Fail::Null("register_bytes"));
        }
        if callbacks.deregister.is_none() {
            return Err(Fail::Null("deregister"));
        }
        // Not yet to be released, should there be no room for it.
        let release = callbacks.release;
        let held =
            Custom { name, callbacks: kvmem_registrar_callbacks { release: None, ..callbacks } };
        let mut held = Arc::new(held);
        if let Some(custom) = Arc::get_mut(&mut held) {
            custom.callbacks.release = release;
        }
        made.put(kvmem_registrars::table().insert(Registrars::of(vec![held]))?);
        Ok(())
    })
}
